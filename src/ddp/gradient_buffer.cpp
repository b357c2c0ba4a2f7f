#include "ddp/gradient_buffer.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

GradientBuffer::GradientBuffer(comm::GradientTransport& transport, BucketPlan plan,
                               std::span<Statistic* const> statistics, int accumulation_buffers,
                               kernels::Backend& backend)
    : plan_(std::move(plan)), backend_(backend) {
  constexpr std::int64_t unit = BucketPlan::alignment_bytes / sizeof(double);
  std::size_t end_bytes = statistics_bucket_.offset_bytes = plan_.bytes();
  for (const Statistic* const statistic : statistics) {
    statistics_.push_back({.offset_bytes = end_bytes, .elements = statistic->elements()});
    const std::int64_t padded = (statistic->elements() + unit - 1) / unit * unit;
    statistics_bucket_.elements += padded;
    end_bytes += static_cast<std::size_t>(padded) * sizeof(double);
  }
  memory_ = transport.allocate_buffer(end_bytes, accumulation_buffers);
}

Tensor GradientBuffer::view(const Span& span, int buffer) const {
  return Tensor::view(memory_->accumulator(buffer) + span.offset_bytes, {span.elements}, span.dtype,
                      backend_.device());
}

Tensor GradientBuffer::gradient(int index, int buffer) const {
  const BucketPlan::Gradient& gradient = plan_.gradients()[static_cast<std::size_t>(index)];
  return Tensor::view(memory_->accumulator(buffer) + plan_.location(index).offset_bytes, gradient.shape,
                      gradient.dtype, backend_.device());
}

Tensor GradientBuffer::statistic(int index, int buffer) const {
  return view(statistics_[static_cast<std::size_t>(index)], buffer);
}

GradientBuffer::Span GradientBuffer::span_of(int bucket) const {
  if (bucket == gradient_buckets()) return statistics_bucket_;
  const BucketPlan::Bucket& found = plan_.buckets()[static_cast<std::size_t>(bucket)];
  return {.offset_bytes = found.offset_bytes, .elements = found.elements(), .dtype = found.dtype};
}

Tensor GradientBuffer::bucket(int index, int buffer) const { return view(span_of(index), buffer); }

comm::TreeSum GradientBuffer::tree_sum(int bucket) const {
  const Span span = span_of(bucket);
  return {.flat_buffer = memory_.get(),
          .offset_bytes = span.offset_bytes,
          .count = span.elements,
          .dtype = span.dtype};
}

void GradientBuffer::adopt(BucketPlan plan) {
  if (plan.bytes() != plan_.bytes() || plan.gradients().size() != plan_.gradients().size())
    throw UsageError("the new bucket plan is over other gradients");
  // Through CPU memory, which costs a device nothing: it happens once.
  const auto elements = static_cast<std::int64_t>(plan_.bytes() / sizeof(float));
  const Tensor old = Tensor::empty({elements});
  for (int buffer = 0; buffer < accumulation_buffers(); ++buffer) {
    const Tensor all = view({.offset_bytes = 0, .elements = elements, .dtype = DType::float32}, buffer);
    backend_.copy(all, old);
    backend_.fill(all, 0);  // padding is always zero
    for (std::size_t i = 0; i < plan.gradients().size(); ++i) {
      const BucketPlan::Gradient& gradient = plan.gradients()[i];
      std::byte* const from =
          static_cast<std::byte*>(old.raw()) + plan_.location(static_cast<int>(i)).offset_bytes;
      std::byte* const to = memory_->accumulator(buffer) + plan.location(static_cast<int>(i)).offset_bytes;
      backend_.copy(Tensor::view(from, gradient.shape, gradient.dtype),
                    Tensor::view(to, gradient.shape, gradient.dtype, backend_.device()));
    }
  }
  plan_ = std::move(plan);
}

AccumulationSchedule::AccumulationSchedule(int shards, comm::ShardRange block) {
  for (const comm::ShardRange& subtree : comm::maximal_subtrees(shards, block)) visit(subtree, subtrees_++);
  for (const Shard& shard : shards_) buffers_ = std::max(buffers_, shard.buffer + 1);
}

void AccumulationSchedule::visit(comm::ShardRange node, int buffer) {
  if (node.count == 1) {
    shards_.push_back({.buffer = buffer, .folds = 0});
    return;
  }
  const int left = comm::left_leaves(node.count);
  visit({node.first, left}, buffer);
  visit({node.first + left, node.count - left}, buffer + 1);
  ++shards_.back().folds;
}

}  // namespace lockstep::ddp
