// Checks and look-ups of the owners of elements.
#include "lockstep/comm/slices.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::comm {
namespace {

constexpr std::int64_t slice_unit = 16;  // elements; even slices start at whole cache lines

/// Throws UsageError unless the ranges cover each element of [0, count) once.
void check_whole(std::int64_t count, std::vector<ElementRange> ranges) {
  const auto starts_before = [](ElementRange a, ElementRange b) { return a.first < b.first; };
  std::sort(ranges.begin(), ranges.end(), starts_before);
  std::int64_t covered = 0;
  for (const ElementRange range : ranges) {
    if (range.first != covered) {
      throw UsageError("slices: {} elements from {} on belong to {}; each element needs one owner",
                       std::abs(range.first - covered), std::min(range.first, covered),
                       range.first > covered ? "no rank" : "several ranges");
    }
    covered = range.end();
  }
  if (covered != count) {
    throw UsageError("slices: the ranges end at element {}, the vector at {}; each element needs one owner",
                     covered, count);
  }
}

}  // namespace

Slices::Slices(std::int64_t count, const std::vector<std::vector<ElementRange>>& ranges_of_rank) {
  if (ranges_of_rank.empty()) throw UsageError("slices: the list of ranks is empty");
  auto table = std::make_shared<Table>();
  table->count = count;
  table->digest = hash_of(count, ranges_of_rank.size());
  for (std::size_t rank = 0; rank < ranges_of_rank.size(); ++rank) {
    table->first_range.push_back(table->ranges.size());
    std::int64_t last_end = 0;
    for (const ElementRange range : ranges_of_rank[rank]) {
      if (range.first < last_end || range.count < 0) {
        throw UsageError("slices of rank {}: the range of {} elements at {} is negative or not ascending",
                         rank, range.count, range.first);
      }
      if (range.count == 0) continue;
      const bool joins = table->ranges.size() > table->first_range.back() && range.first == last_end;
      if (joins) {
        table->ranges.back().count += range.count;
      } else {
        table->ranges.push_back(range);
      }
      last_end = range.end();
    }
    for (std::size_t i = table->first_range.back(); i < table->ranges.size(); ++i) {
      table->digest = hash_of(table->digest, table->ranges[i].first, rank);
    }
  }
  table->first_range.push_back(table->ranges.size());
  check_whole(count, table->ranges);
  table_ = std::move(table);
}

std::span<const ElementRange> Slices::of(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  const std::size_t first = table_->first_range[index];
  return {table_->ranges.data() + first, table_->first_range[index + 1] - first};
}

std::int64_t Slices::count_of(int rank) const {
  const auto ranges = of(rank);
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t count, ElementRange range) { return count + range.count; });
}

ElementRange even_slice(std::int64_t count, int ranks, int rank) {
  const std::int64_t units = (count + slice_unit - 1) / slice_unit;
  const std::int64_t first = units * rank / ranks * slice_unit;
  const std::int64_t end = std::min(units * (rank + 1) / ranks * slice_unit, count);
  return {first, std::max(end - first, std::int64_t{0})};
}

Slices even_slices(std::int64_t count, int ranks) {
  std::vector<std::vector<ElementRange>> ranges;
  for (int rank = 0; rank < ranks; ++rank) ranges.push_back({even_slice(count, ranks, rank)});
  return Slices(count, ranges);
}

}  // namespace lockstep::comm
