#include "train/stragglers.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::train {

Stragglers::Stragglers(std::vector<int> shards_of_rank)
    : shards_(std::move(shards_of_rank)), ranks_(shards_.size()) {
  scratch_.reserve(ranks_.size());
}

/// Sentences, empty mostly. Of an even number of ranks the lower of the two middle times is the median: of
/// two ranks one can be slow.
std::string Stragglers::judge() {
  scratch_.clear();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (shards_[rank] > 0) scratch_.push_back(ranks_[rank].ms);
  }
  std::string text;
  if (scratch_.size() < 2) return text;
  const auto middle = scratch_.begin() + static_cast<std::ptrdiff_t>((scratch_.size() - 1) / 2);
  std::nth_element(scratch_.begin(), middle, scratch_.end());
  const double median_ms = *middle;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    if (shards_[index] == 0) continue;
    const bool slow = rank.ms > factor * median_ms;
    rank.steps = slow == rank.slow ? 0 : rank.steps + 1;
    if (rank.steps < steps) continue;
    rank.slow = slow;
    rank.steps = 0;
    if (!text.empty()) text += "; ";
    text +=
        slow ? fmt::format(
                   "rank {} is slow: {:.1f} ms a shard, {:.1f} times the median of the ranks, for {} steps",
                   index, rank.ms, rank.ms / median_ms, steps)
             : fmt::format("rank {} keeps up again", index);
  }
  return text;
}

}  // namespace lockstep::train
