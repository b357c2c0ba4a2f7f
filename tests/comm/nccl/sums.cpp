// Sums on a GPU, with one rank and with several that share it: in the tree's order they have the bits of the
// serial fold over the shards, which are those of CPUs; in NCCL's order they are near them.
#include <boost/test/unit_test.hpp>
#include <random>
#include <string>
#include <vector>

#include "comm/sums.h"
#include "lockstep/base/error.h"
#include "on_gpu.h"
#include "rounded_sums.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(sums, *ranks(1, 2, 3, 4, 5, 8))

constexpr int max_shards = 16;

/// Fills this rank's accumulators, sums, and compares accumulator 0.
template <class T>
void check_one(OnGpu& gpu, MirroredBuffer& flat_buffer, std::int64_t count, int shards, DType comm_dtype,
               bool exact) {
  const std::uint64_t seed = static_cast<std::uint64_t>(count) * 31 + static_cast<std::uint64_t>(shards);
  const comm::ShardMap map(shards, world().size());
  auto one = make_case<T>(flat_buffer.here, 64, count, shards, seed);
  one.fill(map, world().rank());
  one.elements(0)[-1] = one.elements(0)[count] = T(-7);
  flat_buffer.upload();
  comm::TreeSum sum = one.sum;
  sum.flat_buffer = flat_buffer.there.get();
  sum.comm_dtype = comm_dtype;
  gpu.transport().order_after(gpu.transport().start_tree_sum(sum, map));
  flat_buffer.download();

  const DType rounded = world().size() == 1 ? DType::float32 : comm_dtype;
  for (std::int64_t i = 0; i < count; ++i) {
    const T found = one.elements(0)[i], wanted = sum_sent_as<T>(rounded, seed, map, i);
    const double limit = exact ? 0 : relative_error(rounded) * sum_of_magnitudes<T>(seed, shards, i);
    BOOST_TEST_REQUIRE(std::abs(static_cast<double>(found - wanted)) <= limit,
                       count << " elements, " << shards << " shards, sent as "
                             << std::string(to_string(comm_dtype)) << ": element " << i << " is " << found
                             << ", not " << wanted);
  }
  BOOST_TEST_REQUIRE(one.elements(0)[-1] == T(-7));
  BOOST_TEST_REQUIRE(one.elements(0)[count] == T(-7));
}

MirroredBuffer flat_buffer_for(OnGpu& gpu, std::size_t accumulator_bytes) {
  return {gpu.transport(), gpu.stream(), accumulator_bytes, accumulators_for(max_shards, world().size())};
}

BOOST_AUTO_TEST_CASE(sums_in_the_trees_order_equal_the_serial_fold_for_any_number_of_shards) {
  OnGpu gpu(true);
  MirroredBuffer flat_buffer = flat_buffer_for(gpu, 1 << 13);
  for (int shards = 1; shards <= max_shards; ++shards) {
    check_one<float>(gpu, flat_buffer, 777, shards, DType::float32, true);
    check_one<double>(gpu, flat_buffer, 501, shards, DType::float32, true);
  }
}

BOOST_AUTO_TEST_CASE(every_length_is_summed_and_no_other_element_changes) {
  for (const bool reproducible : {true, false}) {
    OnGpu gpu(reproducible);
    MirroredBuffer flat_buffer = flat_buffer_for(gpu, 1 << 20);
    for (const std::int64_t count : {0, 1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129, 1023, 4097, 200001}) {
      check_one<float>(gpu, flat_buffer, count, 7, DType::float32, reproducible);
      check_one<float>(gpu, flat_buffer, count, 7, DType::bfloat16, reproducible);
    }
  }
}

BOOST_AUTO_TEST_CASE(sixteen_bit_sums_in_the_trees_order_round_each_partial_sum_and_the_result) {
  OnGpu gpu(true);
  MirroredBuffer flat_buffer = flat_buffer_for(gpu, 1 << 13);
  for (const DType comm_dtype : {DType::bfloat16, DType::float16}) {
    for (const int shards : {1, 2, 3, 5, 8, 13})
      check_one<float>(gpu, flat_buffer, 777, shards, comm_dtype, true);
  }
  check_one<double>(gpu, flat_buffer, 777, 5, DType::bfloat16, true);
}

BOOST_AUTO_TEST_CASE(sums_in_the_order_of_nccl_hold_every_shard_once) {
  OnGpu gpu(false);
  MirroredBuffer flat_buffer = flat_buffer_for(gpu, 1 << 13);
  for (int shards = 1; shards <= max_shards; ++shards) {
    check_one<float>(gpu, flat_buffer, 777, shards, DType::float32, false);
    check_one<double>(gpu, flat_buffer, 501, shards, DType::float32, false);
    check_one<float>(gpu, flat_buffer, 777, shards, DType::bfloat16, false);
    check_one<float>(gpu, flat_buffer, 777, shards, DType::float16, false);
  }
}

BOOST_AUTO_TEST_CASE(many_sums_in_flight_complete_in_the_order_started) {
  constexpr int sums = 90;  // more than the events that a communicator begins with
  constexpr std::size_t room_bytes = 1 << 12;
  OnGpu gpu(true);
  comm::GradientTransport& ranks = gpu.transport();
  MirroredBuffer flat_buffer = flat_buffer_for(gpu, sums * room_bytes + 64);
  const comm::ShardMap map(5, world().size());
  for (int round = 0; round < 3; ++round) {
    std::vector<SumCase<float>> cases;
    for (int i = 0; i < sums; ++i) {
      const auto number = static_cast<std::uint64_t>(i);
      cases.push_back(make_case<float>(flat_buffer.here, number * room_bytes, 10 * i, 5,
                                       number + static_cast<std::uint64_t>(round)));
      cases.back().fill(map, world().rank());
    }
    flat_buffer.upload();
    std::vector<comm::Work> works;
    for (const auto& one : cases) {
      comm::TreeSum sum = one.sum;
      sum.flat_buffer = flat_buffer.there.get();
      works.push_back(ranks.start_tree_sum(sum, map));
      ranks.progress();
      BOOST_TEST_REQUIRE((works.size() == 1 || works.back() == works[works.size() - 2] + 1));
    }
    ranks.order_after(works[sums / 2]);
    flat_buffer.download();
    for (int i = 0; i <= sums / 2; ++i) {
      BOOST_TEST_REQUIRE(ranks.done(works[static_cast<std::size_t>(i)]));
      BOOST_TEST_REQUIRE(cases[static_cast<std::size_t>(i)].first_difference() == -1);
    }
    ranks.order_after(works.back());
    flat_buffer.download();
    for (const auto& one : cases) BOOST_TEST_REQUIRE(one.first_difference() == -1);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
