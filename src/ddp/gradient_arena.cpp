#include "ddp/gradient_arena.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

GradArena::GradArena(comm::GradientTransport& communicator, BucketPlan plan,
                     std::span<const std::int64_t> statistic_elements, int planes, kernels::Backend& backend)
    : plan_(std::move(plan)), backend_(backend) {
  constexpr std::int64_t unit = BucketPlan::alignment_bytes / sizeof(double);
  statistics_bucket_ = {.offset_bytes = plan_.plane_bytes(), .elements = 0, .dtype = DType::float64};
  for (const std::int64_t elements : statistic_elements) {
    statistics_.push_back({.offset_bytes = statistics_bucket_.offset_bytes +
                                           static_cast<std::size_t>(statistics_bucket_.elements) * 8,
                           .elements = elements,
                           .dtype = DType::float64});
    statistics_bucket_.elements += (elements + unit - 1) / unit * unit;
  }
  const std::size_t bytes =
      plan_.plane_bytes() + static_cast<std::size_t>(statistics_bucket_.elements) * sizeof(double);
  arena_ = communicator.allocate_arena(bytes, planes);
}

Tensor GradArena::view(const Span& span, int plane) const {
  return Tensor::view(arena_->plane(plane) + span.offset_bytes, {span.elements}, span.dtype,
                      backend_.device());
}

Tensor GradArena::gradient(int index, int plane) const {
  const BucketPlan::Gradient& gradient = plan_.gradients()[static_cast<std::size_t>(index)];
  return Tensor::view(arena_->plane(plane) + plan_.place(index).offset_bytes, gradient.shape, gradient.dtype,
                      backend_.device());
}

Tensor GradArena::statistic(int index, int plane) const {
  return view(statistics_[static_cast<std::size_t>(index)], plane);
}

GradArena::Span GradArena::span_of(int bucket) const {
  if (bucket == gradient_buckets()) return statistics_bucket_;
  const BucketPlan::Bucket& found = plan_.buckets()[static_cast<std::size_t>(bucket)];
  return {.offset_bytes = found.offset_bytes, .elements = found.elements(), .dtype = found.dtype};
}

Tensor GradArena::bucket(int index, int plane) const { return view(span_of(index), plane); }

comm::TreeSum GradArena::tree_sum(int bucket) const {
  const Span span = span_of(bucket);
  return {
      .arena = arena_.get(), .offset_bytes = span.offset_bytes, .count = span.elements, .dtype = span.dtype};
}

void GradArena::adopt(BucketPlan plan) {
  if (plan.plane_bytes() != plan_.plane_bytes() || plan.gradients().size() != plan_.gradients().size())
    throw UsageError("the new bucket plan is over other gradients");
  // By way of CPU memory, which costs a device nothing: it happens once.
  const auto elements = static_cast<std::int64_t>(plan_.plane_bytes() / sizeof(float));
  const Tensor old = Tensor::empty({elements});
  for (int p = 0; p < planes(); ++p) {
    const Tensor plane = Tensor::view(arena_->plane(p), {elements}, DType::float32, backend_.device());
    backend_.copy(plane, old);
    backend_.fill(plane, 0);  // padding is always zero
    for (std::size_t i = 0; i < plan.gradients().size(); ++i) {
      const BucketPlan::Gradient& gradient = plan.gradients()[i];
      std::byte* const from =
          static_cast<std::byte*>(old.raw()) + plan_.place(static_cast<int>(i)).offset_bytes;
      std::byte* const to = arena_->plane(p) + plan.place(static_cast<int>(i)).offset_bytes;
      backend_.copy(Tensor::view(from, gradient.shape, gradient.dtype),
                    Tensor::view(to, gradient.shape, gradient.dtype, backend_.device()));
    }
  }
  plan_ = std::move(plan);
}

PlaneSchedule::PlaneSchedule(int shards, comm::ShardRange block) {
  for (const comm::ShardRange& subtree : comm::maximal_subtrees(shards, block)) visit(subtree, subtrees_++);
  for (const Turn& turn : turns_) planes_ = std::max(planes_, turn.plane + 1);
}

void PlaneSchedule::visit(comm::ShardRange node, int plane) {
  if (node.count == 1) {
    turns_.push_back({.plane = plane, .merges = 0});
    return;
  }
  const int left = comm::left_leaves(node.count);
  visit({node.first, left}, plane);
  visit({node.first + left, node.count - left}, plane + 1);
  ++turns_.back().merges;
}

}  // namespace lockstep::ddp
