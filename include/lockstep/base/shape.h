// The extents of a tensor: up to six, stored in place, so that a Shape never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace lockstep {

/// The extents of a tensor, at most max_rank of them; never allocates.
class Shape {
 public:
  static constexpr int max_rank = 6;  ///< dimensions that a tensor can have

  Shape() = default;  ///< rank 0: a scalar, one element
  /// Throws UsageError on more than max_rank extents, a negative one, or more than 2^59 elements.
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);  ///< UsageError if there are more than max_rank

  int rank() const noexcept { return rank_; }  ///< number of dimensions
  /// Extent of dimension d; negative d counts from the end. Throws UsageError if d is out of range.
  std::int64_t operator[](int d) const;
  std::int64_t numel() const noexcept;  ///< 1 for a scalar, 0 if any extent is 0

  const std::int64_t* begin() const noexcept { return extents_.data(); }
  const std::int64_t* end() const noexcept { return extents_.data() + rank_; }
  /// All extents, outermost first.
  std::span<const std::int64_t> extents() const noexcept { return {begin(), end()}; }

  /// Adds a last dimension. Throws as the constructor does.
  void append(std::int64_t extent);
  /// The same shape with another extent of dimension d; negative d counts from the end.
  Shape with(int d, std::int64_t extent) const;

  bool operator==(const Shape& other) const noexcept;  ///< whether all extents are equal

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

/// "[8, 3, 32, 32]"; "[]" for a scalar.
std::string to_string(const Shape& shape);

}  // namespace lockstep
