// What exchanges between GPUs are made of, carried out without any: sums in the tree's order have the bits of
// the serial fold, NCCL's rules are kept, and slices reach their owners.
#include "comm/nccl/device_exchanges.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "comm/slices.h"
#include "comm/sums.h"
#include "host_arena.h"
#include "rounded_sums.h"
#include "simulated_gpus.h"

namespace comm = lockstep::comm;
namespace test = lockstep::test;
using lockstep::DType;

namespace {

enum class Kind { sum, reduce_scatter, all_gather };

struct Run {
  Kind kind = Kind::sum;
  int ranks = 1;
  int shards = 1;
  std::int64_t count = 0;
  DType wire = DType::float32;
  bool reproducible = true;
  comm::Slices slices = {};
  std::uint64_t seed = 1;
};

std::string text_of(const Run& run) {
  return fmt::format("{} ranks, {} shards, {} elements, sent as {}, seed {}", run.ranks, run.shards,
                     run.count, to_string(run.wire), run.seed);
}

/// All ranks of a run, before and after it.
template <class T>
struct Machine {
  explicit Machine(const Run& what) : run(what), map(what.shards, what.ranks) {
    const std::size_t bytes = 128 + (static_cast<std::size_t>(run.count) * sizeof(T) + 63) / 64 * 64;
    const int planes = test::planes_for(run.shards, run.ranks);
    std::vector<test::WrittenCalls> calls(static_cast<std::size_t>(run.ranks));
    for (int rank = 0; rank < run.ranks; ++rank) {
      arenas.push_back(std::make_unique<test::HostArena>(bytes, planes));
      cases.push_back(test::make_case<T>(*arenas.back(), 64, run.count, run.shards, run.seed));
      cases.back().fill(map, rank);
      elements(rank)[-1] = elements(rank)[run.count] = T(-7);
      plans.push_back(std::make_unique<comm::TermPlan>(map, rank));
      for (comm::TreeProgram* program : {&plans.back()->whole, &plans.back()->own})
        program->on_device = program->steps.data();
      start(calls[static_cast<std::size_t>(rank)], rank);
    }
    test::carry_out(calls);
    for (int rank = 0; rank < run.ranks; ++rank) {
      BOOST_TEST_REQUIRE(elements(rank)[-1] == T(-7));
      BOOST_TEST_REQUIRE(elements(rank)[run.count] == T(-7));
    }
  }
  void start(test::WrittenCalls& calls, int rank) {
    comm::DeviceExchanges exchanges(calls, rank, run.ranks, run.reproducible);
    const comm::DeviceVector vector{.values = reinterpret_cast<std::byte*>(elements(rank)),
                                    .plane_bytes = arenas[0]->plane_bytes(),
                                    .count = run.count,
                                    .dtype = lockstep::dtype_of<T>,
                                    .wire = run.wire};
    const comm::TermPlan& plan = *plans[static_cast<std::size_t>(rank)];
    if (run.kind == Kind::sum) exchanges.tree_sum(vector, plan);
    if (run.kind == Kind::reduce_scatter) exchanges.reduce_scatter(vector, plan, run.slices);
    if (run.kind == Kind::all_gather) exchanges.all_gather(vector, run.slices);
  }
  T* elements(int rank) const { return cases[static_cast<std::size_t>(rank)].elements(0); }

  Run run;
  comm::ShardMap map;
  std::vector<std::unique_ptr<test::HostArena>> arenas;
  std::vector<test::SumCase<T>> cases;
  std::vector<std::unique_ptr<comm::TermPlan>> plans;
};

/// Exact where the order is the tree's; else to within what another order gives.
template <class T>
void check_elements(const Machine<T>& machine, int rank, comm::ElementRange range) {
  const Run& run = machine.run;
  for (std::int64_t i = range.first; i < range.end(); ++i) {
    const T found = machine.elements(rank)[i];
    const T wanted = test::sum_sent_as<T>(run.wire, run.seed, machine.map, i);
    if (run.reproducible) {
      BOOST_TEST_REQUIRE(std::memcmp(&found, &wanted, sizeof(T)) == 0, text_of(run) << ": element " << i);
      continue;
    }
    const double magnitude = test::sum_of_magnitudes<T>(run.seed, run.shards, i);
    BOOST_TEST_REQUIRE(
        std::abs(static_cast<double>(found - wanted)) <= test::relative_error(run.wire) * magnitude,
        text_of(run) << ": element " << i << " is " << found << ", not " << wanted);
  }
}

template <class T>
void check_sum(const Run& run) {
  const Machine<T> machine(run);
  check_elements(machine, 0, {0, run.count});
  const std::size_t bytes = static_cast<std::size_t>(run.count) * sizeof(T);
  for (int rank = 1; rank < run.ranks; ++rank)
    BOOST_TEST_REQUIRE(std::memcmp(machine.elements(rank), machine.elements(0), bytes) == 0,
                       text_of(run) << ": rank " << rank << " has another result than rank 0");
}

template <class T>
void check_reduce_scatter(Run run) {
  run.kind = Kind::reduce_scatter;
  const Machine<T> machine(run);
  for (int rank = 0; rank < run.ranks; ++rank) {
    for (const comm::ElementRange range : run.slices.of(rank)) check_elements(machine, rank, range);
  }
}

template <class T>
void check_all_gather(Run run) {
  run.kind = Kind::all_gather;
  const Machine<T> machine(run);
  for (int owner = 0; owner < run.ranks; ++owner) {
    const auto subtrees = machine.map.subtrees(owner);
    for (const comm::ElementRange range : run.slices.of(owner)) {
      for (std::int64_t i = range.first; i < range.end(); ++i) {
        const T wanted = subtrees.empty() ? T(1e30) : test::serial_sum<T>(run.seed, subtrees[0], i);
        for (int rank = 0; rank < run.ranks; ++rank)
          BOOST_TEST_REQUIRE(machine.elements(rank)[i] == wanted, text_of(run) << ": element " << i);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(sums_in_the_trees_order_have_the_bits_of_the_serial_fold_for_any_ranks_and_shards) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (int shards = 1; shards <= 20; ++shards) {
      check_sum<float>({.ranks = ranks, .shards = shards, .count = 700});
      check_sum<double>({.ranks = ranks, .shards = shards, .count = 333});
    }
  }
}

BOOST_AUTO_TEST_CASE(every_length_is_summed_whole_and_nothing_beside_it) {
  for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 1023}) {
    for (const bool reproducible : {true, false}) {
      for (const DType wire : {DType::float32, DType::bfloat16})
        check_sum<float>(
            {.ranks = 4, .shards = 7, .count = count, .wire = wire, .reproducible = reproducible});
    }
  }
}

BOOST_AUTO_TEST_CASE(sixteen_bit_sums_round_each_partial_sum_and_the_result_and_nothing_else) {
  for (const DType wire : {DType::bfloat16, DType::float16}) {
    for (const int ranks : {2, 3, 4, 7}) {
      for (const int shards : {1, 2, 3, 5, 8, 13})
        check_sum<float>({.ranks = ranks, .shards = shards, .count = 500, .wire = wire});
    }
  }
  check_sum<double>({.ranks = 3, .shards = 5, .count = 100, .wire = DType::bfloat16});
}

BOOST_AUTO_TEST_CASE(sums_in_the_order_of_nccl_hold_every_shard_once) {
  for (int ranks = 2; ranks <= 6; ++ranks) {
    for (int shards = 1; shards <= 13; ++shards) {
      Run run{.ranks = ranks, .shards = shards, .count = 300, .reproducible = false};
      check_sum<float>(run);
      check_sum<double>(run);
      run.wire = DType::float16;
      check_sum<float>(run);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_world_of_one_makes_no_call) {
  test::WrittenCalls calls;
  comm::DeviceExchanges exchanges(calls, 0, 1, true);
  const comm::TermPlan plan(comm::ShardMap(6, 1), 0);
  std::vector<float> values(10);
  const comm::DeviceVector vector{.values = reinterpret_cast<std::byte*>(values.data()), .count = 10};
  exchanges.tree_sum(vector, plan);
  exchanges.reduce_scatter(vector, plan, comm::even_slices(10, 1));
  exchanges.all_gather(vector, comm::even_slices(10, 1));
  BOOST_TEST(calls.steps.empty());
}

BOOST_AUTO_TEST_CASE(slices_of_any_shape_reach_their_owners_and_come_back) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    Run run{.ranks = 2 + static_cast<int>(random() % 5),
            .shards = 1 + static_cast<int>(random() % 12),
            .count = static_cast<std::int64_t>(random() % 900),
            .wire = std::vector{DType::float32, DType::bfloat16, DType::float16}[random() % 3],
            .reproducible = random() % 2 == 0,
            .seed = random()};
    run.slices = test::random_slices(random, run.count, run.ranks, 7);
    check_reduce_scatter<float>(run);
    check_reduce_scatter<double>(run);
    check_all_gather<float>(run);
    check_all_gather<double>(run);
  }
}

BOOST_AUTO_TEST_CASE(even_slices_take_one_collective_call_and_another_for_a_rest) {
  for (const std::int64_t count : {192, 200}) {
    const comm::Slices slices(count, {{{0, 64}}, {{64, 64}}, {{128, count - 128}}});
    std::vector<float> values(static_cast<std::size_t>(count));
    test::WrittenCalls calls;
    comm::DeviceExchanges exchanges(calls, 1, 3, false);
    const comm::DeviceVector vector{.values = reinterpret_cast<std::byte*>(values.data()), .count = count};
    exchanges.reduce_scatter(vector, comm::TermPlan(comm::ShardMap(3, 3), 1), slices);
    exchanges.all_gather(vector, slices);
    BOOST_TEST_REQUIRE(calls.steps.size() == 2u);
    BOOST_TEST((calls.steps[0].group[0].kind == test::Talk::Kind::reduce_scatter));
    BOOST_TEST((calls.steps[1].group[0].kind == test::Talk::Kind::all_gather));
    for (const auto& step : calls.steps) BOOST_TEST(step.group.size() == (count == 192 ? 1u : 2u));

    const Run run{.ranks = 3, .shards = 5, .count = count, .reproducible = false, .slices = slices};
    check_reduce_scatter<float>(run);
    check_all_gather<float>(run);
  }
}

BOOST_AUTO_TEST_CASE(many_ranks_stay_within_groups_of_1024_calls) {
  check_sum<float>({.ranks = 130, .shards = 130, .count = 4300});
  check_sum<float>({.ranks = 50, .shards = 170, .count = 1700});
}

BOOST_AUTO_TEST_CASE(thousands_of_ranges_stay_within_groups_of_1024_calls) {
  constexpr std::int64_t count = 5000;
  std::vector<std::vector<comm::ElementRange>> ranges(3);
  for (std::int64_t i = 0; i < count; ++i)
    ranges[static_cast<std::size_t>(i * i % 3 + (i % 5 == 0 ? 1 : 0))].push_back({i, 1});
  for (const bool reproducible : {true, false}) {
    const Run run{.ranks = 3,
                  .shards = 8,
                  .count = count,
                  .reproducible = reproducible,
                  .slices = comm::Slices(count, ranges)};
    check_reduce_scatter<float>(run);
    check_all_gather<float>(run);
  }
}
