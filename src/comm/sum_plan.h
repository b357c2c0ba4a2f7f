// Which additions each node makes for the sums over one shard map, worked out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/comm/host_group.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// A sum along the tree as a list of additions, carried out block by block so that intermediate sums stay in
/// cache.
/// A sum along the tree as a list of additions, carried out block by block so that intermediate sums stay in
/// cache.
class SumProgram {
 public:
  /// Bytes of every operand that one pass over the additions handles.
  static constexpr std::size_t block_bytes = 8192;

  SumProgram() = default;
  /// The program of the tree node `range`. source_of(node) is the number of the source that holds the node's
  /// sum, or -1 if its children must be added; a single leaf always has a source.
  SumProgram(ShardRange range, const std::function<int(ShardRange)>& source_of);

  /// The source that is the result, if there is nothing to add; else -1.
  int only_source() const { return additions_.empty() ? result_ : -1; }
  std::size_t scratch_bytes() const { return static_cast<std::size_t>(scratch_blocks_) * block_bytes; }

  /// Writes the sum of `count` elements of the sources to every destination (one at least). dtype is float32
  /// or float64. The last addition writes to the destinations directly: through a scratch block it took twice
  /// as long within the L3 cache (4 MiB at 2 ranks: 0.18 ms against 0.08) and 1.15 times beyond. Non-temporal
  /// stores do not pay (0.67 ms; 100 MiB: 11.3 ms against 9.3), as the lines have been read before.
  /// Sources and destinations may be the same memory, element for element. scratch: scratch_bytes(), 64-byte
  /// aligned.
  void evaluate(DType dtype, std::int64_t count, std::span<const std::byte* const> sources,
                std::span<std::byte* const> destinations, std::byte* scratch) const;

 private:
  /// Operands are sources (>= 0) or blocks of scratch (~number, negative).
  struct Addition {
    int left;
    int right;
    int result;
  };

  int build(ShardRange range, const std::function<int(ShardRange)>& source_of, int free_block);
  template <class T>
  void evaluate_as(std::size_t bytes, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::byte* scratch) const;

  std::vector<Addition> additions_;
  int result_ = 0;
  int scratch_blocks_ = 0;
};

/// The plan of one node. A "partial sum" is the largest sub-tree of the tree whose shards all are on one
/// node. Nodes exchange partial sums, so every addition above them follows the tree wherever the ranks run.
struct SumPlan {
  /// A plane of a rank of this node, or (local_rank < 0) a partial sum received from another node.
  struct Source {
    int local_rank = -1;
    int index = 0;  ///< of the plane; or of the partial sum among all those received
  };
  struct Sum {
    SumProgram program;
    std::vector<Source> sources;
  };

  int shards = 0;
  std::vector<Sum> partials;  ///< this node's partial sums, from its ranks' planes
  Sum whole;              ///< the sum of everything, from this node's planes and the partial sums it receives
  Sum whole_of_partials;  ///< the same from partial sums alone: received ones come first
  std::vector<int> partials_of_node;  ///< how many partial sums each node has
  int received = 0;                   ///< partial sums that this node receives
  std::vector<int> planes_of_rank;
  std::size_t scratch_bytes = 0;  ///< enough for every program here
};

SumPlan make_sum_plan(const ShardMap& map, const Topology& topology, int node);

}  // namespace lockstep::comm
