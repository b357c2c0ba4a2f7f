// A process that was not launched as a rank is a world of one and leaves MPI alone.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/benchmark.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/communicator.h"
#include "sums.h"
#include "support/environment.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(alone)

BOOST_AUTO_TEST_CASE(a_process_started_alone_does_not_touch_mpi) {
  Environment environment;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) environment.unset(name);
  environment.set("SLURM_PROCID", "0");  // as in the shell of a batch script
  int argc = 0;
  char** argv = nullptr;
  comm::World world(argc, argv);
  int initialised = 1;
  MPI_Initialized(&initialised);
  BOOST_TEST(initialised == 0);
  BOOST_TEST(world.communicator().size() == 1);
  BOOST_TEST(world.communicator().rank() == 0);
  BOOST_TEST(world.communicator().topology().nodes() == 1);
  BOOST_TEST(world.communicator().topology().ranks_on_node(0) == 1);
}

BOOST_AUTO_TEST_CASE(alone_collectives_give_back_what_they_were_given) {
  const auto self = comm::make_self_communicator();
  int mine = 7, all = 0;
  self->all_gather(&mine, sizeof mine, &all);
  BOOST_TEST(all == 7);
  BOOST_TEST((self->all_gather_texts("a text") == std::vector<std::string>{"a text"}));
  self->broadcast(&mine, sizeof mine, 0);
  BOOST_TEST(mine == 7);
  self->barrier(0.1);
  BOOST_TEST(self->split(3, 1)->size() == 1);
  BOOST_CHECK_THROW(self->broadcast(&mine, sizeof mine, 1), UsageError);
  BOOST_CHECK_THROW(self->split(-1, 0), UsageError);
}

BOOST_AUTO_TEST_CASE(alone_a_sum_over_all_shards_is_the_one_sub_tree_s) {
  const auto self = comm::make_self_communicator();
  const auto flat_buffer = self->allocate_buffer(4096, 2);
  for (int shards = 1; shards <= 24; ++shards) {
    const comm::ShardMap map(shards, 1);
    const auto one = make_case<float>(*flat_buffer, 64, 99, shards, 5);
    one.fill(map, 0);
    const comm::Work work = self->start_tree_sum(one.sum, map);
    BOOST_TEST(work == static_cast<comm::Work>(shards));
    self->order_after(work);
    BOOST_TEST(one.first_difference() == -1);
  }
  BOOST_CHECK_THROW(self->start_tree_sum({flat_buffer.get(), 0, 1, DType::int32}, comm::ShardMap(1, 1)),
                    UsageError);
  BOOST_CHECK_THROW(self->start_tree_sum({flat_buffer.get(), 0, 1, DType::float32}, comm::ShardMap(2, 2)),
                    UsageError);
  BOOST_CHECK_THROW(self->done(100), UsageError);
}

BOOST_AUTO_TEST_CASE(alone_the_owner_of_everything_has_everything) {
  const auto self = comm::make_self_communicator();
  const auto flat_buffer = self->allocate_buffer(4096, 2);
  const auto one = make_case<float>(*flat_buffer, 64, 99, 6, 5);
  one.fill(comm::ShardMap(6, 1), 0);
  const comm::Slices all = comm::even_slices(99, 1);
  self->order_after(self->start_reduce_scatter(one.sum, comm::ShardMap(6, 1), all));
  self->order_after(self->start_all_gather(one.sum, all));
  BOOST_TEST(one.first_difference() == -1);
  BOOST_CHECK_THROW(self->start_all_gather(one.sum, comm::even_slices(98, 1)), UsageError);
  BOOST_CHECK_THROW(self->start_reduce_scatter(one.sum, comm::ShardMap(6, 1), comm::even_slices(99, 2)),
                    UsageError);

  const std::vector<std::size_t> bytes = {sizeof(int)};
  int mine = 7, gathered = 0;
  self->all_gather_unequal(&mine, bytes, &gathered);
  BOOST_TEST(gathered == 7);
  int sent = 8;
  const std::span<const std::byte> to = std::as_bytes(std::span(&sent, 1));
  const std::span<std::byte> from = std::as_writable_bytes(std::span(&gathered, 1));
  self->all_to_all({&to, 1}, {&from, 1});
  BOOST_TEST(gathered == 8);
  const auto values = comm::all_gather_json(*self, {{"loss", 0.1}});
  BOOST_TEST(values.at(0).at("loss").get<double>() == 0.1);
}

BOOST_AUTO_TEST_CASE(alone_the_benchmark_has_nothing_to_compare_with) {
  const auto self = comm::make_self_communicator();
  const std::vector<std::size_t> sizes = {4096};
  const auto times = comm::time_all_reduce(*self, sizes);
  BOOST_TEST(times.at(0).exact);
  BOOST_TEST(times.at(0).mpi_ms == 0);
}

BOOST_AUTO_TEST_CASE(alone_a_flat_buffer_is_zeroed_and_aligned) {
  const auto flat_buffer = comm::make_self_communicator()->allocate_buffer(100, 3);
  for (int accumulator = 0; accumulator < 3; ++accumulator) {
    BOOST_TEST(reinterpret_cast<std::uintptr_t>(flat_buffer->accumulator(accumulator)) % 64 == 0u);
    for (int i = 0; i < 100; ++i)
      BOOST_TEST_REQUIRE((flat_buffer->accumulator(accumulator)[i] == std::byte{0}));
    std::memset(flat_buffer->accumulator(accumulator), 0xff, 100);
  }
  BOOST_CHECK_THROW(flat_buffer->accumulator(3), UsageError);
  BOOST_CHECK_THROW(comm::make_self_communicator()->allocate_buffer(100, 0), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
