// Stream: the endless sequence of samples that training walks along, a pure function of the position.
//
// Position p is in epoch p div N at place p mod N, which the epoch's permutation turns into a sample. Step
// s takes positions [s B, (s + 1) B) for a global batch B; shard v of V takes [s B + v B / V, s B + (v + 1) B
// / V) of them. An epoch may end inside a batch. Neither the number of ranks nor the past matters.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

class Stream {
 public:
  struct Options {
    std::int64_t samples = 0;       ///< N
    std::int64_t global_batch = 0;  ///< B
    std::int64_t shards = 1;        ///< V
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: every epoch in the data's own order
  };
  /// Throws UsageError if a number is below 1 or the shards do not divide the batch.
  explicit Stream(const Options& options);

  const Options& options() const { return options_; }
  std::int64_t samples_per_shard() const { return options_.global_batch / options_.shards; }
  /// The epoch in which a step begins.
  std::int64_t epoch(std::int64_t step) const { return first_position(step) / options_.samples; }
  /// The samples of one shard at one step; `out` holds samples_per_shard(). Throws UsageError on a step below
  /// 0 or beyond 2^63 positions, a shard outside [0, V), or another size of `out`.
  void shard_samples(std::int64_t step, std::int64_t shard, std::span<std::int64_t> out) const;

 private:
  std::int64_t first_position(std::int64_t step) const;

  Options options_;
};

}  // namespace lockstep::data
