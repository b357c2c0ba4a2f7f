#include "ddp/gradient_buffer.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

GradientBuffer::GradientBuffer(comm::GradientTransport& transport, BucketPlan plan,
                               std::span<Statistic* const> statistics, int accumulation_buffers,
                               kernels::Backend& backend)
    : plan_(std::move(plan)), backend_(backend) {
  constexpr std::int64_t unit = BucketPlan::alignment_bytes / sizeof(double);
  std::int64_t all = 0;
  for (const Statistic* const statistic : statistics) {
    const std::size_t offset_bytes = plan_.bytes() + static_cast<std::size_t>(all) * sizeof(double);
    statistics_.push_back({.offset_bytes = offset_bytes, .shape = {statistic->elements()}});
    all += (statistic->elements() + unit - 1) / unit * unit;
  }
  statistics_bucket_ = {.offset_bytes = plan_.bytes(), .shape = {all}};
  memory_ = transport.allocate_buffer(plan_.bytes() + static_cast<std::size_t>(all) * sizeof(double),
                                      accumulation_buffers);
}

Tensor GradientBuffer::view(const Span& span, int buffer) const {
  return Tensor::view(memory_->accumulator(buffer) + span.offset_bytes, span.shape, span.dtype,
                      backend_.device());
}

Tensor GradientBuffer::gradient(int index, int buffer) const {
  const BucketPlan::Gradient& gradient = plan_.gradients()[static_cast<std::size_t>(index)];
  return view({plan_.location(index).offset_bytes, gradient.shape, gradient.dtype}, buffer);
}

Tensor GradientBuffer::statistic(int index, int buffer) const {
  return view(statistics_[static_cast<std::size_t>(index)], buffer);
}

GradientBuffer::Span GradientBuffer::span_of(int bucket) const {
  if (bucket == gradient_buckets()) return statistics_bucket_;
  const BucketPlan::Bucket& found = plan_.buckets()[static_cast<std::size_t>(bucket)];
  return {found.offset_bytes, {found.elements()}, found.dtype};
}

Tensor GradientBuffer::bucket(int index, int buffer) const { return view(span_of(index), buffer); }

comm::TreeSum GradientBuffer::tree_sum(int bucket) const {
  const Span span = span_of(bucket);
  return {.flat_buffer = memory_.get(),
          .offset_bytes = span.offset_bytes,
          .count = span.shape.numel(),
          .dtype = span.dtype};
}

void GradientBuffer::adopt(BucketPlan plan) {
  if (plan.bytes() != plan_.bytes() || plan.gradients().size() != plan_.gradients().size())
    throw UsageError("the new bucket plan has other gradients");
  // Through CPU memory: it happens only once, and needs no memory of the device.
  const Shape elements{static_cast<std::int64_t>(plan_.bytes() / sizeof(float))};
  const Tensor old = Tensor::empty(elements);
  for (int buffer = 0; buffer < accumulation_buffers(); ++buffer) {
    const Tensor all = view({0, elements, DType::float32}, buffer);
    backend_.copy(all, old);
    backend_.fill(all, 0);  // padding is always zero
    for (int i = 0; i < static_cast<int>(plan.gradients().size()); ++i) {
      const auto& [name, shape, dtype] = plan.gradients()[static_cast<std::size_t>(i)];
      auto* const from = static_cast<std::byte*>(old.raw()) + plan_.location(i).offset_bytes;
      backend_.copy(Tensor::view(from, shape, dtype),
                    view({plan.location(i).offset_bytes, shape, dtype}, buffer));
    }
  }
  plan_ = std::move(plan);
}

AccumulationSchedule::AccumulationSchedule(int shards, comm::ShardRange block, int shards_at_once)
    : block_(block) {
  for (const comm::ShardRange& subtree : comm::maximal_subtrees(shards, block))
    visit(subtree, subtrees_++, shards_at_once);
  for (const Group& group : groups_) buffers_ = std::max(buffers_, group.buffer + 1);
}

int AccumulationSchedule::largest_group() const {
  int largest = 1;
  for (const Group& group : groups_) largest = std::max(largest, group.count);
  return largest;
}

int AccumulationSchedule::shards_of(int group) const {
  return group < static_cast<int>(groups_.size()) ? groups_[static_cast<std::size_t>(group)].count : 1;
}

void AccumulationSchedule::visit(comm::ShardRange node, int buffer, int shards_at_once) {
  if (node.count <= shards_at_once) {
    groups_.push_back(
        {.first = node.first - block_.first, .count = node.count, .buffer = buffer, .folds = 0});
    return;
  }
  const int left = comm::left_leaves(node.count);
  visit({node.first, left}, buffer, shards_at_once);
  visit({node.first + left, node.count - left}, buffer + 1, shards_at_once);
  ++groups_.back().folds;
}

}  // namespace lockstep::ddp
