// GradArena: the memory of all gradients and statistics of a rank, registered once with the communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// Planes of equal layout: the buckets of a BucketPlan, then float64 statistics, which are one more bucket,
/// the last. Gradients are only ever views of it.
class GradArena {
 public:
  /// Collective; every rank has the same plan and statistics, the number of planes may differ. The
  /// communicator's arenas are on the backend's device.
  GradArena(comm::GradientTransport& communicator, BucketPlan plan,
            std::span<const std::int64_t> statistic_elements, int planes, kernels::Backend& backend);

  const BucketPlan& plan() const { return plan_; }
  int planes() const { return arena_->planes(); }
  std::size_t plane_bytes() const { return arena_->plane_bytes(); }

  Tensor gradient(int index, int plane) const;
  Tensor statistic(int index, int plane) const;  ///< float64 [elements]

  int buckets() const { return gradient_buckets() + (statistics_.empty() ? 0 : 1); }
  int gradient_buckets() const { return static_cast<int>(plan_.buckets().size()); }
  /// All of a bucket as one vector, padding (always zero) included.
  Tensor bucket(int index, int plane) const;
  comm::TreeSum tree_sum(int bucket) const;

  /// Moves every gradient of every plane to its place in `plan`, which is over the same gradients. Nothing
  /// may be in flight.
  void adopt(BucketPlan plan);

  /// Leaves the memory to the end of the process: exchanges that nobody will wait for may still use it. After
  /// that, only destruction.
  void leave() {
    if (!arena_->leave()) static_cast<void>(arena_.release());
  }

 private:
  struct Span {
    std::size_t offset_bytes = 0;
    std::int64_t elements = 0;
    DType dtype = DType::float32;
  };
  Span span_of(int bucket) const;
  Tensor view(const Span& span, int plane) const;

  BucketPlan plan_;
  std::vector<Span> statistics_;
  Span statistics_bucket_;
  kernels::Backend& backend_;
  std::unique_ptr<comm::Arena> arena_;
};

/// A rank runs its shards one after another and keeps a stack of partial sums along the reduction tree, a
/// plane each. At the end plane p holds the sum of the p-th maximal sub-tree of its block, which is what
/// comm::GradientTransport::start_tree_sum asks for.
class PlaneSchedule {
 public:
  struct Turn {
    int plane = 0;   ///< where the shard's gradient goes
    int merges = 0;  ///< inner nodes complete after it: plane - 1 += plane, then plane - 2 += plane - 1 ...
  };

  PlaneSchedule(int shards, comm::ShardRange block);

  /// 1 + log2 k for k shards that make up one sub-tree; at least 1.
  int planes() const { return planes_; }
  const std::vector<Turn>& turns() const { return turns_; }  ///< one a shard of the block, in order
  int subtrees() const { return subtrees_; }

 private:
  void visit(comm::ShardRange node, int plane);

  std::vector<Turn> turns_;
  int planes_ = 1;
  int subtrees_ = 0;
};

}  // namespace lockstep::ddp
