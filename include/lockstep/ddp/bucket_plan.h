// BucketPlan: which gradients are summed together, in which order, and where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::ddp {

/// A bucket closes as soon as it holds this many bytes, so it may exceed its limit by a part of one gradient.
/// Buckets taper towards the end, as the last sums cannot hide behind backward: a bucket also closes when it
/// holds a quarter of the remaining bytes (but not below the smaller limit). Over a 1 Gbit/s link a step of
/// gpt-cpu took 1.10 times its compute with a quarter, 1.14 times with half, 1.41 times as one bucket.
struct BucketLimits {
  std::size_t first_bytes = std::size_t{1} << 20;   ///< the first bucket of each element type
  std::size_t other_bytes = std::size_t{25} << 20;  ///< all later ones
};

/// The bytes at which bucket number `bucket` of its element type closes, if the buckets before it leave
/// `bytes_left` bytes of that type.
using BucketLimit = std::function<std::size_t(std::size_t bucket, std::size_t bytes_left)>;

/// The rule of PyTorch's DistributedDataParallel: tensors go in order into the open bucket of their element
/// type, which closes once it holds at least its limit. Buckets are in the order of their smallest index.
std::vector<std::vector<int>> assign_buckets(std::span<const std::size_t> tensor_bytes,
                                             std::span<const DType> dtypes, const BucketLimit& limit_of);

/// An immutable value of a pure function: equal arguments give equal plans on every rank.
///
/// Memory layout: an accumulation buffer holds all buckets in plan order. Every gradient starts at a multiple
/// of 64 bytes; a bucket spans from its first gradient to the start of the next bucket, padding included. The
/// size of the buffer does not depend on order or limits.
class BucketPlan {
 public:
  static constexpr std::size_t alignment_bytes = 64;  ///< each gradient begins at a multiple of this

  /// The properties of a gradient that a plan depends on.
  struct Gradient {
    std::string name;              ///< of the parameter
    Shape shape;                   ///< of the parameter
    DType dtype = DType::float32;  ///< of the gradient
  };
  /// Gradients that are summed as one message.
  struct Bucket {
    std::vector<int> gradients;    ///< in order of expected arrival
    DType dtype = DType::float32;  ///< of all its gradients
    std::size_t offset_bytes = 0;  ///< where it begins in the flat gradient buffer
    std::size_t bytes = 0;         ///< a multiple of 64
    /// Elements, including the gaps between gradients.
    std::int64_t elements() const { return static_cast<std::int64_t>(bytes / bytes_of(dtype)); }
  };
  /// The position of a gradient.
  struct Location {
    int bucket = 0;                ///< which bucket, by number
    std::size_t offset_bytes = 0;  ///< from the start of the accumulation buffer
  };

  BucketPlan() = default;
  /// order: the indices of `gradients` in the expected order of arrival, each once (UsageError otherwise).
  BucketPlan(std::vector<Gradient> gradients, std::span<const int> order, const BucketLimits& limits);

  /// In the order of the constructor's argument.
  std::span<const Gradient> gradients() const { return gradients_; }
  std::span<const Bucket> buckets() const { return buckets_; }  ///< in the order in which they are summed
  /// The place of a gradient, by number.
  const Location& location(int gradient) const { return locations_[static_cast<std::size_t>(gradient)]; }
  std::size_t bytes() const { return bytes_; }  ///< of the flat gradient buffer
  /// The gradients in plan order: bucket by bucket.
  std::vector<int> order() const;

  /// XXH3-64 over names, element types, shapes and their grouping into buckets.
  std::uint64_t hash() const { return hash_; }

 private:
  std::vector<Gradient> gradients_;
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;
  std::size_t bytes_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace lockstep::ddp
