// BucketSlicer: where the parts that ranks own of parameters lie in buckets.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/sharding.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/slices.h"
#include "lockstep/ddp/bucket_plan.h"

namespace lockstep::ddp {

class BucketSlicer {
 public:
  /// params: of a model, all of which are sharded; plans are over the trainable ones of them, in order.
  BucketSlicer(std::span<Param* const> params, comm::Communicator& communicator);

  const Sharding& sharding() const { return sharding_; }
  /// The slices of each bucket of the plan. Padding goes with the last elements of its tensor.
  std::vector<comm::Slices> slices(const BucketPlan& plan) const;

 private:
  Sharding sharding_;
  std::vector<std::size_t> trainable_;  ///< indices in the sharding
};

}  // namespace lockstep::ddp
