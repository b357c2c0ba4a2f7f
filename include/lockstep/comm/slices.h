// Slices: which rank owns which elements of a vector.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::comm {

/// Elements [first, first + count).
struct ElementRange {
  std::int64_t first = 0;                             ///< the first element
  std::int64_t count = 0;                             ///< how many
  std::int64_t end() const { return first + count; }  ///< one past the last
  bool operator==(const ElementRange&) const = default;
};

/// An immutable value that divides a vector among ranks: each owns any number of ranges, or none. Copies are
/// cheap and allocate nothing. A look-up is an array access.
class Slices {
 public:
  /// No elements and no ranks.
  Slices() = default;
  /// ranges_of_rank[r]: what rank r owns, ascending. Together they must cover each element of [0, count)
  /// once; otherwise UsageError. Empty ranges are left out; neighbouring ones are joined.
  Slices(std::int64_t count, const std::vector<std::vector<ElementRange>>& ranges_of_rank);

  /// The number of ranks.
  int ranks() const { return table_ ? static_cast<int>(table_->first_range.size()) - 1 : 0; }
  /// Elements of the vector.
  std::int64_t count() const { return table_ ? table_->count : 0; }
  /// The rank's ranges, ascending.
  std::span<const ElementRange> of(int rank) const;
  /// Elements that the rank owns.
  std::int64_t count_of(int rank) const;
  /// A digest of the whole value: equal slices have equal ones.
  std::uint64_t digest() const { return table_ ? table_->digest : 0; }

 private:
  struct Table {
    std::int64_t count = 0;
    std::uint64_t digest = 0;
    std::vector<ElementRange> ranges;      ///< rank by rank
    std::vector<std::size_t> first_range;  ///< by rank, and one past the last
  };
  std::shared_ptr<const Table> table_;
};

/// One range a rank, of nearly equal sizes, cut at multiples of 16 elements: the division of work in whole
/// sums.
ElementRange even_slice(std::int64_t count, int ranks, int rank);
Slices even_slices(std::int64_t count, int ranks);

}  // namespace lockstep::comm
