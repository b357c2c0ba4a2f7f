#include "ddp/parameter_buffer.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::ddp {

ParameterBuffer::ParameterBuffer(std::span<Param* const> params, const BucketPartition& bucket_partition,
                                 comm::GradientTransport& transport, kernels::Backend& backend,
                                 const BucketPlan& plan, bool overlapped)
    : bucket_partition_(bucket_partition),
      transport_(transport),
      backend_(backend),
      buffer_(transport, plan, {}, 1, backend),
      overlapped_(overlapped) {
  for (Param* const param : params) {
    trainable_of_param_.push_back(param->trainable ? trainable_.size() : frozen);
    if (!param->trainable) continue;
    index_of_.emplace(param, trainable_.size());
    trainable_.push_back(param);
  }
  fit_plan();
  for (std::size_t i = 0; i < trainable_.size(); ++i) backend_.copy(trainable_[i]->value, view(i));
  point_values_here();
  for (Param* const param : trainable_) param->pending_values = this;
}

ParameterBuffer::~ParameterBuffer() {
  // Another DataParallel may hold the parameters now.
  for (Param* const param : trainable_) {
    if (param->pending_values == this) param->pending_values = nullptr;
  }
  try {
    // While an exception unwinds, peers may never complete the all-gathers.
    if (std::uncaught_exceptions() == 0 && !transport_failed_) wait_ready();
    for (std::size_t i = 0; i < trainable_.size(); ++i) {
      if (!trainable_[i]->value.shares_memory_with(view(i))) continue;
      const Tensor own = backend_.empty(trainable_[i]->value.shape());
      backend_.copy(trainable_[i]->value, own);
      trainable_[i]->value = own;
    }
  } catch (...) {  // out of memory, or no peers: the values are lost with the buffer
    for (std::size_t i = 0; i < trainable_.size(); ++i) {
      if (trainable_[i]->value.shares_memory_with(view(i))) trainable_[i]->value = {};
    }
  }
  if (in_flight_ > 0) buffer_.abandon();
}

void ParameterBuffer::fit_plan() {
  slices_ = bucket_partition_.slices(buffer_.plan());
  works_.assign(slices_.size(), 0);
  open_.resize(slices_.size());
  reopen();
}

void ParameterBuffer::reopen() {
  for (std::size_t b = 0; b < open_.size(); ++b) open_[b] = buffer_.plan().buckets()[b].gradients.size();
}

void ParameterBuffer::point_values_here() {
  for (std::size_t i = 0; i < trainable_.size(); ++i) trainable_[i]->value = view(i);
}

void ParameterBuffer::begin_step() {
  for (std::size_t i = 0; i < trainable_.size(); ++i) {
    if (!trainable_[i]->value.shares_memory_with(view(i)))
      throw UsageError(
          "the value of parameter {} has been replaced by other memory, which a sharded optimizer cannot "
          "send; copy elements into it instead, and do not train while EMA weights are swapped in",
          trainable_[i]->name);
  }
  reopen();
}

void ParameterBuffer::updated(std::size_t param) {
  const std::size_t index = trainable_of_param_.at(param);
  if (index == frozen) return;
  const std::size_t bucket = bucket_of(index);
  if (--open_[bucket] == 0) {
    open_[bucket] = buffer_.plan().buckets()[bucket].gradients.size();
    start(bucket);
  }
  if (in_flight_ > 0) transport([&] { transport_.progress(); });
}

void ParameterBuffer::start(std::size_t bucket) {
  wait_for(bucket);
  const comm::TreeSum all = buffer_.tree_sum(static_cast<int>(bucket));
  if (all.count == 0) return;
  transport([&] { works_[bucket] = transport_.start_all_gather(all, slices_[bucket]); });
  ++in_flight_;
  if (!overlapped_) wait_for(bucket);
}

void ParameterBuffer::wait_for(std::size_t bucket) {
  if (works_[bucket] == 0) return;
  const Stopwatch watch;
  transport([&] { transport_.order_after(works_[bucket]); });
  waited_ms_ += watch.elapsed_ms();
  works_[bucket] = 0;
  --in_flight_;
}

void ParameterBuffer::wait_for(const Param& param) {
  if (in_flight_ == 0) return;
  if (const auto found = index_of_.find(&param); found != index_of_.end()) wait_for(bucket_of(found->second));
  // Later buckets advance, too.
  if (in_flight_ > 0) transport([&] { transport_.progress(); });
}

void ParameterBuffer::wait_ready() {
  for (std::size_t bucket = 0; bucket < works_.size(); ++bucket) wait_for(bucket);
}

void ParameterBuffer::adopt(const BucketPlan& plan) {
  wait_ready();
  buffer_.adopt(plan);
  fit_plan();
  point_values_here();
}

BucketPartition::BucketPartition(std::span<Param* const> params, comm::GradientTransport& transport)
    : partition_(params, transport) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i]->trainable) trainable_.push_back(i);
  }
}

std::vector<comm::Slices> BucketPartition::slices(const BucketPlan& plan) const {
  const auto ranks = static_cast<std::size_t>(partition_.ranks());
  std::vector<comm::Slices> slices;
  for (const BucketPlan::Bucket& bucket : plan.buckets()) {
    const auto element_bytes = bytes_of(bucket.dtype);
    const auto offset_of = [&](std::size_t i) {
      return i == bucket.gradients.size()
                 ? bucket.elements()
                 : static_cast<std::int64_t>(
                       (plan.location(bucket.gradients[i]).offset_bytes - bucket.offset_bytes) /
                       element_bytes);
    };
    std::vector<std::vector<comm::ElementRange>> ranges_of_rank(ranks);
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const std::size_t param = trainable_[static_cast<std::size_t>(bucket.gradients[i])];
      const std::int64_t offset = offset_of(i), padded = offset_of(i + 1) - offset;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        comm::ElementRange range = partition_.range(param, static_cast<int>(rank));
        if (range.count == 0) continue;
        if (range.end() == partition_.elements(param)) range.count = padded - range.first;
        ranges_of_rank[rank].push_back({.first = offset + range.first, .count = range.count});
      }
    }
    slices.emplace_back(bucket.elements(), ranges_of_rank);
  }
  return slices;
}

}  // namespace lockstep::ddp
