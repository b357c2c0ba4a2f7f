// Private to the module: names a rank that computes much longer than the others, step after step.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/reduction_tree.h"

namespace lockstep::train {

inline std::vector<int> shards_of_ranks(const comm::ShardMap& map) {
  std::vector<int> shards;
  for (int rank = 0; rank < map.ranks(); ++rank) shards.push_back(map.block(rank).count);
  return shards;
}

class Stragglers {
 public:
  static constexpr int steps = 20;       ///< in a row, before a rank is reported as slow, or as fast again
  static constexpr double factor = 1.5;  ///< times the median of the ranks
  static constexpr double min_ms = 1;    ///< and at least this much longer a shard, as less is noise

  /// The time of one shard is compared. Ranks without shards do not take part.
  explicit Stragglers(std::vector<int> shards_of_rank)
      : shards_(std::move(shards_of_rank)), ranks_(shards_.size()) {
    sorted_ms_.reserve(ranks_.size());
  }

  /// Adds the compute time of each rank in a step. Returns the text to report; usually it is empty, and then
  /// allocates nothing.
  template <class ComputeMsOf>
  std::string note(const ComputeMsOf& compute_ms_of) {
    sorted_ms_.clear();
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (shards_[rank] == 0) continue;
      ranks_[rank].shard_ms = compute_ms_of(static_cast<int>(rank)) / shards_[rank];
      sorted_ms_.push_back(ranks_[rank].shard_ms);
    }
    std::string text;
    if (sorted_ms_.size() < 2) return text;
    // The lower median, so that one of two ranks can be slow.
    const auto middle = sorted_ms_.begin() + static_cast<std::ptrdiff_t>((sorted_ms_.size() - 1) / 2);
    std::nth_element(sorted_ms_.begin(), middle, sorted_ms_.end());
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      Rank& rank = ranks_[index];
      if (shards_[index] == 0) continue;
      const bool slow = rank.shard_ms > std::max(factor * *middle, *middle + min_ms);
      rank.steps = slow == rank.slow ? 0 : rank.steps + 1;
      if (rank.steps < steps) continue;
      rank = {rank.shard_ms, 0, slow};
      if (!text.empty()) text += "; ";
      text +=
          slow ? fmt::format(
                     "rank {} is slow: {:.1f} ms a shard, {:.1f} times the median of the ranks, for {} steps",
                     index, rank.shard_ms, rank.shard_ms / *middle, steps)
               : fmt::format("rank {} keeps up again", index);
    }
    return text;
  }

 private:
  struct Rank {
    double shard_ms = 0;  ///< of the last step
    int steps = 0;        ///< in a row that contradict `slow`
    bool slow = false;
  };

  std::vector<int> shards_;
  std::vector<Rank> ranks_;
  std::vector<double> sorted_ms_;  ///< up to the median
};

}  // namespace lockstep::train
