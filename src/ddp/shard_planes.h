// ShardPlanes: the gradients of shards that one pass computes at once, one plane for each shard.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ddp/gradient_buffer.h"
#include "lockstep/autograd/param.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// Memory of the backend, beside the flat gradient buffer. The planes of a gradient follow one another, so
/// that a product can write all of them; one kernel a bucket adds them along the reduction tree.
class ShardPlanes {
 public:
  /// For at most `shards` at once. Fits the buffer's plan.
  ShardPlanes(const GradientBuffer& buffer, std::span<Statistic* const> statistics, int shards,
              kernels::Backend& backend);

  int shards() const { return shards_; }
  // Planes [count, ...] of a gradient, and of a statistic: float64 [count, elements].
  Tensor gradient(const GradientBuffer& buffer, int index, int count) const;
  Tensor statistic(int index, int count) const;

  /// sum: a bucket of the buffer, by its number. It becomes the sum of `count` planes.
  void add(int bucket, int count, const Tensor& sum) const;
  /// Adds to other buckets from now on: those of a new plan over the same gradients.
  void fit(const GradientBuffer& buffer);

 private:
  struct Span {
    std::int64_t first = 0,
                 elements = 0;  ///< of plane 0, if there is one shard; all planes are `shards` times
  };

  int shards_;
  kernels::Backend& backend_;
  std::vector<Span> spans_, spans_of_statistics_;
  Tensor gradients_, statistics_;
  std::vector<Tensor> tables_;  ///< by bucket: of ops::AddAlongTree
};

}  // namespace lockstep::ddp
