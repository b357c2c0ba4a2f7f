// GradientBuffer: the memory of all gradients and statistics of a rank, and the sums of its shards in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// The flat gradient buffer: accumulation buffers of one layout, the buckets of a BucketPlan and then float64
/// statistics, which are the last bucket. Gradients are always views of it. The transport allocates it.
class GradientBuffer {
 public:
  /// Collective; every rank has the same plan and statistics, the number of accumulation buffers may differ.
  /// The transport's memory is on the backend's device.
  GradientBuffer(comm::GradientTransport& transport, BucketPlan plan, std::span<Statistic* const> statistics,
                 int accumulation_buffers, kernels::Backend& backend);

  const BucketPlan& plan() const { return plan_; }
  int accumulation_buffers() const { return memory_->accumulators(); }
  std::size_t accumulation_buffer_bytes() const { return memory_->accumulator_bytes(); }
  int buckets() const { return gradient_buckets() + (statistics_.empty() ? 0 : 1); }
  int gradient_buckets() const { return static_cast<int>(plan_.buckets().size()); }

  // Views of accumulation buffer number `buffer`.
  Tensor gradient(int index, int buffer) const;
  Tensor statistic(int index, int buffer) const;  ///< float64 [elements]
  Tensor bucket(int index, int buffer) const;     ///< all of it as one vector, zero padding included
  comm::TreeSum tree_sum(int bucket) const;

  /// Moves every gradient of every accumulation buffer to its offset in `plan`, which is over the same
  /// gradients. Nothing may be in flight.
  void adopt(BucketPlan plan);

  /// Keeps the memory until the process ends, because unfinished collectives may still use it. Only
  /// destruction may follow.
  void abandon() {
    if (!memory_->abandon()) static_cast<void>(memory_.release());
  }

 private:
  struct Span {
    std::size_t offset_bytes = 0;
    Shape shape{0};
    DType dtype = DType::float64;
  };
  Span span_of(int bucket) const;
  Tensor view(const Span& span, int buffer) const;

  BucketPlan plan_;
  std::vector<Span> statistics_;
  Span statistics_bucket_;
  kernels::Backend& backend_;
  std::unique_ptr<comm::FlatBuffer> memory_;
};

/// The accumulation buffer of each group's gradient, and the order of additions. A rank runs its shards in
/// groups, each a sub-tree of at most so many shards (one, without shards at once), one after another, and
/// keeps a stack of partial sums along the reduction tree. At the end buffer p holds the sum of the p-th
/// maximal sub-tree of its block, as comm::GradientTransport::start_tree_sum asks.
class AccumulationSchedule {
 public:
  /// Shards that one pass computes.
  struct Group {
    int first = 0;  ///< counted from the rank's first shard
    int count = 1;
    int buffer = 0;
    /// Inner nodes that are complete after it: buffer - 1 += buffer, then buffer - 2 += buffer - 1 ...
    int folds = 0;
  };

  AccumulationSchedule(int shards, comm::ShardRange block, int shards_at_once = 1);

  /// 1 + log2 k for k groups that make up one sub-tree; at least 1.
  int buffers() const { return buffers_; }
  const std::vector<Group>& groups() const { return groups_; }  ///< of the block, in order
  int shards() const { return block_.count; }                   ///< of the block
  int largest_group() const;
  int shards_of(int group) const;  ///< 1 after the last group
  int subtrees() const { return subtrees_; }

 private:
  void visit(comm::ShardRange node, int buffer, int shards_at_once);

  comm::ShardRange block_;
  std::vector<Group> groups_;
  int buffers_ = 1;
  int subtrees_ = 0;
};

}  // namespace lockstep::ddp
