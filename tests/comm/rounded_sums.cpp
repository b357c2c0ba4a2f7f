// Sums whose messages between nodes are rounded to 16 bits: partial sums of nodes and the result, nothing
// else.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "comm/cpu_sums.h"
#include "comm/mpi_calls.h"
#include "layouts.h"
#include "slices.h"
#include "sums.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(rounded_sums, *ranks(1, 2, 3, 4))

float rounded(DType comm_dtype, float value) {
  return comm_dtype == DType::bfloat16 ? from_bfloat16_bits(bfloat16_bits(value))
                                       : from_float16_bits(float16_bits(value));
}

/// The sum of a sub-tree, rounded where it is the largest one that is on a single node.
struct Expected {
  DType comm_dtype;
  const comm::ShardMap& map;
  const comm::Topology& topology;
  std::uint64_t seed;

  bool on_one_node(comm::ShardRange range) const {
    const auto node = [&](int shard) {
      return topology.node_of_rank[static_cast<std::size_t>(map.owner(shard))];
    };
    for (int shard = range.first; shard < range.end(); ++shard) {
      if (node(shard) != node(range.first)) return false;
    }
    return true;
  }
  float sum(comm::ShardRange range, std::int64_t element) const {
    if (on_one_node(range)) return rounded(comm_dtype, serial_sum<float>(seed, range, element));
    const int left = comm::left_leaves(range.count);
    return sum({range.first, left}, element) + sum({range.first + left, range.count - left}, element);
  }
  float result(std::int64_t element) const {
    const comm::ShardRange all{0, map.shards()};
    return topology.nodes() == 1 ? serial_sum<float>(seed, all, element)
                                 : rounded(comm_dtype, sum(all, element));
  }
};

BOOST_AUTO_TEST_CASE(nodes_partial_sums_and_the_result_are_rounded_once_and_nothing_on_a_single_node) {
  const auto seed = common_seed(world());
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout) << ", seed " << seed) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 1024});
      const auto flat_buffer = nodes->allocate_buffer(8192, accumulators_for(12, nodes->size()));
      std::mt19937_64 common(seed);
      for (const DType comm_dtype : {DType::bfloat16, DType::float16}) {
        for (const int shards : {1, 3, 5, 12}) {
          for (const bool scatter : {false, true}) {
            const comm::ShardMap map(shards, nodes->size());
            auto one = make_case<float>(*flat_buffer, 64, 1777, shards, common());
            one.sum.comm_dtype = comm_dtype;
            one.fill(map, nodes->rank());
            const auto slices = scatter ? random_slices(common, 1777, nodes->size(), 6)
                                        : comm::even_slices(1777, nodes->size());
            nodes->order_after(scatter ? nodes->start_reduce_scatter(one.sum, map, slices)
                                       : nodes->start_tree_sum(one.sum, map));
            const Expected expected{comm_dtype, map, nodes->topology(), one.seed};
            for (int rank = 0; rank < nodes->size(); ++rank) {
              if (scatter && rank != nodes->rank()) continue;
              for (const comm::ElementRange range : slices.of(rank)) {
                for (std::int64_t i = range.first; i < range.end(); ++i)
                  BOOST_TEST_REQUIRE(one.elements(0)[i] == expected.result(i));
              }
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(float64_sums_and_gathers_are_not_rounded) {
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 1024});
      const auto flat_buffer = nodes->allocate_buffer(8192, accumulators_for(5, nodes->size()));
      const comm::ShardMap map(5, nodes->size());
      auto one = make_case<double>(*flat_buffer, 0, 777, 5, 11);
      one.sum.comm_dtype = DType::bfloat16;
      one.fill(map, nodes->rank());
      nodes->order_after(nodes->start_tree_sum(one.sum, map));
      BOOST_TEST(one.first_difference() == -1);

      auto* values = reinterpret_cast<float*>(flat_buffer->accumulator(0));
      const auto slices = comm::even_slices(1000, nodes->size());
      for (int i = 0; i < 1000; ++i) values[i] = -1;
      for (const comm::ElementRange range : slices.of(nodes->rank())) {
        for (std::int64_t i = range.first; i < range.end(); ++i) values[i] = static_cast<float>(i) / 3;
      }
      nodes->order_after(
          nodes->start_all_gather({flat_buffer.get(), 0, 1000, DType::float32, DType::bfloat16}, slices));
      for (int i = 0; i < 1000; ++i) BOOST_TEST_REQUIRE(values[i] == static_cast<float>(i) / 3);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
