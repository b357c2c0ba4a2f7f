// Private to the module: naming a rank that computes much longer than the others, step after step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::train {

class Stragglers {
 public:
  static constexpr int steps = 20;       ///< on end, to be named, or to be one no longer
  static constexpr double factor = 1.5;  ///< times the median over the ranks

  /// shards_of_rank: what is compared is the time of one shard. Ranks without shards are not judged.
  explicit Stragglers(std::vector<int> shards_of_rank);

  /// Of a step: how long each rank computed. Allocates nothing unless there is something to say.
  template <class ComputeMsOf>
  std::string note(const ComputeMsOf& compute_ms_of) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (shards_[rank] > 0) ranks_[rank].ms = compute_ms_of(static_cast<int>(rank)) / shards_[rank];
    }
    return judge();
  }

 private:
  struct Rank {
    double ms = 0;  ///< of a shard, in the last step
    int steps = 0;  ///< on end that speak against what is said of it
    bool slow = false;
  };
  std::string judge();

  std::vector<int> shards_;
  std::vector<Rank> ranks_;
  std::vector<double> scratch_;
};

}  // namespace lockstep::train
