// The fixed binary tree of all sums over shards, and which rank owns which shards.
//
// A node over n > 1 leaves splits at the largest power of two below n. Float addition is commutative but not
// associative: a fixed tree over shards fixes the bits for any number of ranks.
#pragma once

#include <utility>
#include <vector>

namespace lockstep::comm {

/// A run of shards [first, first + count).
struct ShardRange {
  int first = 0;                             ///< the first shard
  int count = 0;                             ///< how many shards
  int end() const { return first + count; }  ///< one past the last
  bool operator==(const ShardRange&) const = default;
};

/// Leaves in the left child of a node over `leaves` > 1 leaves: the largest power of two below it.
int left_leaves(int leaves);

/// The maximal sub-trees of the tree over `leaves` within `range`, left to right. Together they have exactly
/// the leaves of `range`; an empty range has none.
std::vector<ShardRange> maximal_subtrees(int leaves, ShardRange range);

/// Ranks own contiguous blocks of shards whose sizes differ by at most one (the first shards % ranks blocks
/// are larger by one). With fewer shards than ranks the last ranks own none.
class ShardMap {
 public:
  /// shards >= 1, ranks >= 1.
  ShardMap(int shards, int ranks);
  int shards() const { return shards_; }  ///< how many there are
  int ranks() const { return ranks_; }    ///< how many share them
  ShardRange block(int rank) const;       ///< the shards of a rank: contiguous
  int owner(int shard) const;             ///< the rank that has a shard
  /// maximal_subtrees of the rank's block.
  std::vector<ShardRange> subtrees(int rank) const { return maximal_subtrees(shards_, block(rank)); }

 private:
  int shards_;
  int ranks_;
};

/// Folds values over the tree: combine(left, right) at each inner node, leaf(shard) at each leaf.
template <class Leaf, class Combine>
auto fold_tree(ShardRange range, const Leaf& leaf, const Combine& combine) -> decltype(leaf(0)) {
  if (range.count == 1) return leaf(range.first);
  const int left = left_leaves(range.count);
  auto a = fold_tree({range.first, left}, leaf, combine);
  return combine(std::move(a), fold_tree({range.first + left, range.count - left}, leaf, combine));
}

}  // namespace lockstep::comm
