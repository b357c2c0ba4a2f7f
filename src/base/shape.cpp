#include "lockstep/base/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  if (extents.size() > max_rank) {
    throw UsageError("a shape has {} dimensions; at most {} are supported", extents.size(), max_rank);
  }
  // Keeps sizes in bytes below 2^63: an element has at most 8 bytes.
  constexpr std::int64_t max_elements = std::int64_t{1} << 59;
  std::int64_t product = 1;
  bool too_large = false;
  for (const std::int64_t extent : extents) {
    if (extent < 0) throw UsageError("shape [{}] has a negative extent", fmt::join(extents, ", "));
    // Also beside an extent of 0: other code multiplies the other extents.
    if (extent > 0) too_large = too_large || __builtin_mul_overflow(product, extent, &product);
  }
  if (too_large || product > max_elements)
    throw UsageError("shape [{}] has more elements than any machine holds; make it smaller",
                     fmt::join(extents, ", "));
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::operator[](int d) const {
  const int at = d < 0 ? d + rank_ : d;
  if (at < 0 || at >= rank_)
    throw UsageError("dimension {} is out of range for shape {}", d, to_string(*this));
  return extents_[static_cast<std::size_t>(at)];
}

std::int64_t Shape::numel() const noexcept {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents()) product *= extent;
  return product;
}

void Shape::append(std::int64_t extent) {
  std::array<std::int64_t, max_rank + 1> longer{};
  std::copy(begin(), end(), longer.begin());
  longer[static_cast<std::size_t>(rank_)] = extent;
  *this = Shape(std::span<const std::int64_t>(longer.data(), static_cast<std::size_t>(rank_) + 1));
}

Shape Shape::with(int d, std::int64_t extent) const {
  static_cast<void>((*this)[d]);  // checks d
  std::array<std::int64_t, max_rank> changed = extents_;
  changed[static_cast<std::size_t>(d < 0 ? d + rank_ : d)] = extent;
  return Shape(std::span<const std::int64_t>(changed.data(), static_cast<std::size_t>(rank_)));
}

bool Shape::operator==(const Shape& other) const noexcept {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.extents(), ", ")); }

}  // namespace lockstep
