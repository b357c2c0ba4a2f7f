// PlaneSchedule: in which plane a rank leaves each of its shards' gradients, and when planes are added up.
#pragma once

#include <vector>

#include "lockstep/comm/reduction_tree.h"

namespace lockstep::ddp {

/// A rank runs its shards one after another and keeps a stack of partial sums along the reduction tree, a
/// plane each. At the end plane p holds the sum of the p-th maximal sub-tree of its block, which is what
/// comm::Communicator::start_tree_sum asks for.
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
