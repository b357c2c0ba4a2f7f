#include "lockstep/data/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

/// ceil(length / ranks); with drop_last and a remainder ceil((length - ranks) / ranks), as in PyTorch.
std::int64_t samples_per_rank(const DistributedSampler::Options& options) {
  const std::int64_t whole = options.length / options.ranks;
  return whole + (options.length % options.ranks != 0 && !options.drop_last ? 1 : 0);
}

}  // namespace

DistributedSampler::DistributedSampler(const Options& options) : options_(options) {
  if (options.length < 0) throw UsageError("a sampler over {} samples was asked", options.length);
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
    throw UsageError("a sampler for rank {} of {} was asked: ranks count from 0", options.rank,
                     options.ranks);
  }
  per_rank_ = samples_per_rank(options);
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  if (options_.shuffle && options_.length > 0) permutation_.emplace(options_.length, options_.seed, epoch);
}

std::int64_t DistributedSampler::operator[](std::int64_t i) const {
  if (i < 0 || i >= per_rank_) throw UsageError("sample {} of {} asked of a sampler", i, per_rank_);
  const std::int64_t place = (options_.rank + i * options_.ranks) % options_.length;
  return permutation_ ? (*permutation_)(place) : place;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(per_rank_));
  for (std::int64_t i = 0; i < per_rank_; ++i) all[static_cast<std::size_t>(i)] = (*this)[i];
  return all;
}

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  if (size < 1 || size > (std::int64_t{1} << 62))
    throw UsageError("a permutation of {} elements was asked", size);
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
  const Random random({seed, purpose_of("permutation"), epoch, 0});
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto words = random.block(round);
    round_keys_[round] = (std::uint64_t{words[0]} << 32) | words[1];
  }
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (const std::uint64_t key : round_keys_) {
      const std::uint64_t mixed = left ^ (mix_bits(right ^ key) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

SampleStream::SampleStream(const Options& options) : options_(options) {
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

std::int64_t SampleStream::first_position(std::int64_t step) const {
  if (step < 0 || step >= std::numeric_limits<std::int64_t>::max() / options_.global_batch) {
    throw UsageError("step {} is outside the stream (global_batch = {})", step, options_.global_batch);
  }
  return step * options_.global_batch;
}

void SampleStream::shard_samples(std::int64_t step, std::int64_t shard, std::span<std::int64_t> out) const {
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
