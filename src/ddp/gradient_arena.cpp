#include "ddp/gradient_arena.h"

#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

GradArena::GradArena(comm::Communicator& communicator, BucketPlan plan,
                     std::span<const std::int64_t> statistic_elements, int planes, Device device)
    : plan_(std::move(plan)), device_(device) {
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
  return Tensor::view(arena_->plane(plane) + span.offset_bytes, {span.elements}, span.dtype, device_);
}

Tensor GradArena::gradient(int index, int plane) const {
  const BucketPlan::Gradient& gradient = plan_.gradients()[static_cast<std::size_t>(index)];
  return Tensor::view(arena_->plane(plane) + plan_.place(index).offset_bytes, gradient.shape, gradient.dtype,
                      device_);
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
  std::vector<std::byte> old(plan_.plane_bytes());
  for (int p = 0; p < planes(); ++p) {
    std::byte* const plane = arena_->plane(p);
    std::memcpy(old.data(), plane, old.size());
    std::memset(plane, 0, old.size());  // padding is always zero
    for (std::size_t i = 0; i < plan.gradients().size(); ++i) {
      const BucketPlan::Gradient& gradient = plan.gradients()[i];
      const std::size_t bytes = static_cast<std::size_t>(gradient.shape.numel()) * bytes_of(gradient.dtype);
      std::memcpy(plane + plan.place(static_cast<int>(i)).offset_bytes,
                  old.data() + plan_.place(static_cast<int>(i)).offset_bytes, bytes);
    }
  }
  plan_ = std::move(plan);
}

}  // namespace lockstep::ddp
