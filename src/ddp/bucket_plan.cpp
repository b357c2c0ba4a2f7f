#include "lockstep/ddp/bucket_plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t unit = BucketPlan::alignment_bytes;
  return (bytes + unit - 1) / unit * unit;
}

std::size_t bytes_of_gradient(const BucketPlan::Gradient& gradient) {
  return static_cast<std::size_t>(gradient.shape.numel()) * bytes_of(gradient.dtype);
}

void check_order(std::size_t gradients, std::span<const int> order) {
  std::vector<int> sorted(order.begin(), order.end()), all(gradients);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all)
    throw UsageError("bucket plan: the order must name each of {} gradients once", gradients);
}

}  // namespace

std::vector<std::vector<int>> assign_buckets(std::span<const std::size_t> tensor_bytes,
                                             std::span<const DType> dtypes, const BucketLimit& limit_of) {
  struct Open {
    std::vector<int> tensors;
    std::size_t bytes = 0;
    std::size_t number = 0;
    std::size_t bytes_left = 0;
  };
  std::map<DType, Open> open_of_dtype;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i)
    open_of_dtype[dtypes[i]].bytes_left += tensor_bytes[i];
  std::vector<std::vector<int>> buckets;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    Open& open = open_of_dtype[dtypes[i]];
    open.tensors.push_back(static_cast<int>(i));
    open.bytes += tensor_bytes[i];
    if (open.bytes < limit_of(open.number, open.bytes_left)) continue;
    buckets.push_back(std::exchange(open.tensors, {}));
    open.bytes_left -= std::exchange(open.bytes, 0);
    ++open.number;
  }
  for (auto& [dtype, open] : open_of_dtype) {
    if (!open.tensors.empty()) buckets.push_back(std::move(open.tensors));
  }
  std::ranges::sort(buckets, {}, [](const std::vector<int>& bucket) { return bucket.front(); });
  return buckets;
}

BucketPlan::BucketPlan(std::vector<Gradient> gradients, std::span<const int> order,
                       const BucketLimits& limits)
    : gradients_(std::move(gradients)), locations_(gradients_.size()) {
  check_order(gradients_.size(), order);
  std::vector<std::size_t> sizes;
  std::vector<DType> dtypes;
  for (const int index : order) {
    const Gradient& gradient = gradients_[static_cast<std::size_t>(index)];
    sizes.push_back(bytes_of_gradient(gradient));
    dtypes.push_back(gradient.dtype);
  }
  const auto limit_of = [&](std::size_t bucket, std::size_t bytes_left) {
    if (bucket == 0) return limits.first_bytes;
    const std::size_t smaller = std::min(limits.first_bytes, limits.other_bytes);
    return std::max(smaller, std::min(limits.other_bytes, bytes_left / 4));
  };
  std::string text;
  for (const std::vector<int>& positions : assign_buckets(sizes, dtypes, limit_of)) {
    Bucket bucket;
    bucket.offset_bytes = bytes_;
    for (const int position : positions) {
      const int index = order[static_cast<std::size_t>(position)];
      const Gradient& gradient = gradients_[static_cast<std::size_t>(index)];
      bucket.gradients.push_back(index);
      bucket.dtype = gradient.dtype;
      locations_[static_cast<std::size_t>(index)] = {static_cast<int>(buckets_.size()), bytes_};
      bytes_ += aligned(bytes_of_gradient(gradient));
      text += fmt::format("{} {} {} {};", gradient.name.size(), gradient.name, to_string(gradient.dtype),
                          to_string(gradient.shape));
    }
    bucket.bytes = bytes_ - bucket.offset_bytes;
    buckets_.push_back(std::move(bucket));
    text += "|";
  }
  hash_ = XXH3_64bits(text.data(), text.size());
}

std::vector<int> BucketPlan::order() const {
  std::vector<int> order;
  for (const Bucket& bucket : buckets_)
    order.insert(order.end(), bucket.gradients.begin(), bucket.gradients.end());
  return order;
}

}  // namespace lockstep::ddp
