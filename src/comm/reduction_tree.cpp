// The tree over shards, and the blocks of shards that ranks own.
#include "lockstep/comm/reduction_tree.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

void collect(ShardRange node, ShardRange range, std::vector<ShardRange>& found) {
  if (node.end() <= range.first || range.end() <= node.first) return;
  if (range.first <= node.first && node.end() <= range.end()) {
    found.push_back(node);
    return;
  }
  const int left = left_leaves(node.count);
  collect({node.first, left}, range, found);
  collect({node.first + left, node.count - left}, range, found);
}

}  // namespace

int left_leaves(int leaves) {
  if (leaves < 2) throw UsageError("reduction tree: a node over {} leaves has no left child", leaves);
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(leaves - 1)));
}

std::vector<ShardRange> maximal_subtrees(int leaves, ShardRange range) {
  if (range.first < 0 || range.count < 0 || range.end() > leaves) {
    throw UsageError("reduction tree: shards [{}, {}) are out of range; there are {}", range.first,
                     range.end(), leaves);
  }
  std::vector<ShardRange> found;
  if (range.count > 0) collect({0, leaves}, range, found);
  return found;
}

ShardMap::ShardMap(int shards, int ranks) : shards_(shards), ranks_(ranks) {
  if (shards < 1 || ranks < 1) {
    throw UsageError("shard map: {} shards on {} ranks: both must be at least 1", shards, ranks);
  }
}

ShardRange ShardMap::block(int rank) const {
  if (rank < 0 || rank >= ranks_)
    throw UsageError("shard map: rank {} is out of range; there are {}", rank, ranks_);
  const int size = shards_ / ranks_;
  const int larger = shards_ % ranks_;
  return {rank * size + std::min(rank, larger), size + (rank < larger ? 1 : 0)};
}

int ShardMap::owner(int shard) const {
  if (shard < 0 || shard >= shards_)
    throw UsageError("shard map: shard {} is out of range; there are {}", shard, shards_);
  const int size = shards_ / ranks_;
  const int larger = shards_ % ranks_;
  const int in_larger = larger * (size + 1);
  return shard < in_larger ? shard / (size + 1) : larger + (shard - in_larger) / size;
}

}  // namespace lockstep::comm
