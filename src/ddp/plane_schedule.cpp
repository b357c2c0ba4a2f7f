#include "ddp/plane_schedule.h"

#include <algorithm>

namespace lockstep::ddp {

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
