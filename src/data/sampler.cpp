// PyTorch's strided shares.
#include "lockstep/data/sampler.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// ceil(length / ranks); with drop_last and a remainder ceil((length - ranks) / ranks), as PyTorch has it.
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

}  // namespace lockstep::data
