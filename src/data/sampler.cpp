#include "lockstep/data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

/// ceil(length / ranks); with drop_last and a remainder ceil((length - ranks) / ranks), like PyTorch.
std::int64_t samples_per_rank(const DistributedSampler::Options& options) {
  const std::int64_t whole = options.length / options.ranks;
  return whole + (options.length % options.ranks != 0 && !options.drop_last ? 1 : 0);
}

}  // namespace

DistributedSampler::DistributedSampler(const Options& options) : options_(options) {
  if (options.length < 0) throw UsageError("sampler: length {} must not be negative", options.length);
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
    throw UsageError("sampler: rank {} of {} is out of range; ranks count from 0", options.rank,
                     options.ranks);
  }
  per_rank_ = samples_per_rank(options);
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  if (options_.shuffle && options_.length > 0) permutation_.emplace(options_.length, options_.seed, epoch);
}

std::int64_t DistributedSampler::operator[](std::int64_t i) const {
  if (i < 0 || i >= per_rank_)
    throw UsageError("sampler: index {} is out of range; this rank has {} samples", i, per_rank_);
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
    throw UsageError("permutation: size {} must be from 1 to 2^62", size);
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

Shuffle::Shuffle(std::int64_t size, std::uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle) {
  if (size < 1) throw UsageError("shuffle: size {} must be at least 1", size);
}

void Shuffle::samples(std::int64_t first, std::span<std::int64_t> out) const {
  std::int64_t position = first;
  for (std::size_t done = 0; done < out.size();) {
    const std::int64_t epoch = position / size_;
    const Permutation permutation(size_, seed_, static_cast<std::uint64_t>(epoch));
    for (std::int64_t index = position % size_; index < size_ && done < out.size(); ++index) {
      out[done++] = shuffle_ ? permutation(index) : index;
      ++position;
    }
  }
}

WeightedDraws::WeightedDraws(std::span<const double> weights, std::uint64_t seed)
    : cumulative_(weights.begin(), weights.end()), seed_(seed) {
  double sum = 0;
  for (std::size_t i = 0; i < cumulative_.size(); ++i) {
    if (!(cumulative_[i] >= 0 && std::isfinite(cumulative_[i])))
      throw UsageError("the weight of sample {} is {}; must be finite and not negative", i, cumulative_[i]);
    cumulative_[i] = sum += cumulative_[i];
  }
  if (!(sum > 0 && std::isfinite(sum)))
    throw UsageError("the weights of {} samples have the sum {}; must be finite and above 0", weights.size(),
                     sum);
}

void WeightedDraws::samples(std::int64_t first, std::span<std::int64_t> out) const {
  const Random random({seed_, purpose_of("weighted draws"), 0, 0});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto words = random.block(static_cast<std::uint64_t>(first) + i);
    const double uniform = static_cast<double>((std::uint64_t{words[0]} << 21) ^ (words[1] >> 11)) * 0x1p-53;
    const auto above = std::ranges::upper_bound(cumulative_, uniform * cumulative_.back());
    // Rounding may reach the sum itself, but must not draw a sample of weight 0 at the end.
    const auto last = std::ranges::lower_bound(cumulative_, cumulative_.back());
    out[i] = std::min(above, last) - cumulative_.begin();
  }
}

SampleStream::SampleStream(const Options& options, std::unique_ptr<Order> order)
    : options_(options), order_(std::move(order)) {
  if (options.samples < 1)
    throw UsageError("sample stream: samples = {}; must be at least 1", options.samples);
  if (options.global_batch < 1)
    throw UsageError("sample stream: global_batch = {}; must be at least 1", options.global_batch);
  if (options.shards < 1) throw UsageError("sample stream: shards = {}; must be at least 1", options.shards);
  if (options.global_batch % options.shards != 0) {
    throw UsageError(
        "sample stream: shards = {} does not divide global_batch = {}; choose a multiple of shards",
        options.shards, options.global_batch);
  }
  if (!order_) order_ = std::make_unique<Shuffle>(options.samples, options.seed, options.shuffle);
}

std::int64_t SampleStream::first_position(std::int64_t step) const {
  if (step < 0 || step >= std::numeric_limits<std::int64_t>::max() / options_.global_batch) {
    throw UsageError("sample stream: step {} is out of range (global_batch = {})", step,
                     options_.global_batch);
  }
  return step * options_.global_batch;
}

void SampleStream::shard_samples(std::int64_t step, std::int64_t shard, std::span<std::int64_t> out) const {
  if (shard < 0 || shard >= options_.shards)
    throw UsageError("sample stream: shard {} is out of range; there are {} shards", shard, options_.shards);
  if (static_cast<std::int64_t>(out.size()) != samples_per_shard()) {
    throw UsageError("sample stream: a shard has {} samples, but the output holds {}", samples_per_shard(),
                     out.size());
  }
  order_->samples(first_position(step) + shard * samples_per_shard(), out);
}

}  // namespace lockstep::data
