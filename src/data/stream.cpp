// Positions to samples.
#include "lockstep/data/stream.h"

#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

Stream::Stream(const Options& options) : options_(options) {
  if (options.samples < 1)
    throw UsageError("a stream over {} samples was asked: there must be at least one", options.samples);
  if (options.global_batch < 1)
    throw UsageError("global_batch = {}: it must be at least 1", options.global_batch);
  if (options.shards < 1) throw UsageError("shards = {}: it must be at least 1", options.shards);
  if (options.global_batch % options.shards != 0) {
    throw UsageError(
        "shards = {} does not divide global_batch = {}: choose a batch that is a multiple of the shards",
        options.shards, options.global_batch);
  }
}

std::int64_t Stream::first_position(std::int64_t step) const {
  if (step < 0 || step >= std::numeric_limits<std::int64_t>::max() / options_.global_batch) {
    throw UsageError("step {} is outside the stream (global_batch = {})", step, options_.global_batch);
  }
  return step * options_.global_batch;
}

void Stream::shard_samples(std::int64_t step, std::int64_t shard, std::span<std::int64_t> out) const {
  if (shard < 0 || shard >= options_.shards) throw UsageError("shard {} of {} asked", shard, options_.shards);
  if (static_cast<std::int64_t>(out.size()) != samples_per_shard()) {
    throw UsageError("a shard has {} samples, not {}", samples_per_shard(), out.size());
  }
  std::int64_t position = first_position(step) + shard * samples_per_shard();
  for (std::size_t done = 0; done < out.size();) {
    const std::int64_t epoch = position / options_.samples;
    const Permutation permutation(options_.samples, options_.seed, static_cast<std::uint64_t>(epoch));
    for (std::int64_t place = position % options_.samples; place < options_.samples && done < out.size();
         ++place) {
      out[done++] = options_.shuffle ? permutation(place) : place;
      ++position;
    }
  }
}

}  // namespace lockstep::data
