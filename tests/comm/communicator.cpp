// What the ranks of a world can do together, sums and failures aside.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/node.h"
#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(communicator, *ranks(1, 2, 3, 4))

/// The world as one node, as a node a rank, and with messages so small that everything is cut up.
std::vector<std::unique_ptr<comm::CpuCommunicator>> worlds() {
  std::vector<int> apart(static_cast<std::size_t>(world().size()));
  for (std::size_t rank = 0; rank < apart.size(); ++rank) apart[rank] = static_cast<int>(rank);
  const std::vector<int> together(apart.size());
  std::vector<std::unique_ptr<comm::CpuCommunicator>> found;
  found.push_back(comm::make_mpi_communicator(MPI_COMM_WORLD, together));
  found.push_back(comm::make_mpi_communicator(MPI_COMM_WORLD, apart));
  found.push_back(comm::make_mpi_communicator(MPI_COMM_WORLD, apart, {.message_bytes = 999}));
  return found;
}

std::uint8_t byte_of(int rank, int round, std::size_t index) {
  return static_cast<std::uint8_t>(static_cast<std::size_t>(rank) * 89 +
                                   static_cast<std::size_t>(round) * 31 + index * 7);
}

BOOST_AUTO_TEST_CASE(the_launched_ranks_are_a_world) {
  int rank = -1, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  BOOST_TEST(world().rank() == rank);
  BOOST_TEST(world().size() == size);
}

BOOST_AUTO_TEST_CASE(all_gather_returns_every_rank_s_bytes_in_rank_order) {
  for (const auto& ranks : worlds()) {
    for (int round = 0; round < 5; ++round) {
      for (const std::size_t bytes : {0, 1, 8, 100, 4096, 4097, 20000}) {  // through slots, and beyond
        std::vector<std::uint8_t> mine(bytes);
        for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte_of(ranks->rank(), round, i);
        std::vector<std::uint8_t> all(bytes * static_cast<std::size_t>(ranks->size()) + 1, 0xaa);
        ranks->all_gather(mine.data(), bytes, all.data());
        bool right = all.back() == 0xaa;
        for (int rank = 0; rank < ranks->size(); ++rank) {
          for (std::size_t i = 0; i < bytes; ++i) {
            right = right && all[static_cast<std::size_t>(rank) * bytes + i] == byte_of(rank, round, i);
          }
        }
        BOOST_TEST_REQUIRE(right, bytes << " bytes, round " << round);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(all_gather_may_read_a_rank_s_bytes_from_the_result) {
  for (const auto& ranks : worlds()) {
    std::vector<double> all(static_cast<std::size_t>(ranks->size()));
    double& mine = all[static_cast<std::size_t>(ranks->rank())];
    mine = ranks->rank() + 0.5;
    ranks->all_gather(&mine, sizeof mine, all.data());
    for (int rank = 0; rank < ranks->size(); ++rank)
      BOOST_TEST(all[static_cast<std::size_t>(rank)] == rank + 0.5);
  }
}

BOOST_AUTO_TEST_CASE(texts_of_any_length_are_gathered_whole) {
  for (const auto& ranks : worlds()) {
    const auto text_of = [](int rank) {
      return rank == 1
                 ? std::string()
                 : std::string(static_cast<std::size_t>(rank * 3000 + 2), static_cast<char>('a' + rank)) +
                       '\0';
    };
    const std::vector<std::string> texts = ranks->all_gather_texts(text_of(ranks->rank()));
    BOOST_TEST_REQUIRE(texts.size() == static_cast<std::size_t>(ranks->size()));
    for (int rank = 0; rank < ranks->size(); ++rank)
      BOOST_TEST(texts[static_cast<std::size_t>(rank)] == text_of(rank));
  }
}

BOOST_AUTO_TEST_CASE(texts_may_all_be_empty) {
  for (const auto& ranks : worlds()) {
    for (const std::string& text : ranks->all_gather_texts("")) BOOST_TEST(text.empty());
  }
}

BOOST_AUTO_TEST_CASE(a_broadcast_in_parts_of_any_size_arrives_whole) {
  for (const auto& ranks : worlds()) {
    for (int root = 0; root < ranks->size(); ++root) {
      for (const std::size_t bytes : {0, 1, 998, 999, 1000, 1998, 5000}) {
        std::vector<std::uint8_t> data(bytes + 1, 0xaa);
        if (ranks->rank() == root) {
          for (std::size_t i = 0; i < bytes; ++i) data[i] = byte_of(root, 0, i);
        }
        ranks->broadcast(data.data(), bytes, root);
        bool right = data.back() == 0xaa;
        for (std::size_t i = 0; i < bytes; ++i) right = right && data[i] == byte_of(root, 0, i);
        BOOST_TEST_REQUIRE(right, bytes << " bytes from rank " << root);
      }
    }
    BOOST_CHECK_THROW(ranks->broadcast(nullptr, 0, ranks->size()), UsageError);
  }
}

BOOST_AUTO_TEST_CASE(nobody_passes_a_barrier_before_all_have_come) {
  for (const auto& ranks : worlds()) {
    // Rank 0 writes to shared memory and then enters; a rank that has left the barrier must see it.
    MPI_Win window = MPI_WIN_NULL;
    int* shared = nullptr;
    MPI_Win_allocate_shared(world().rank() == 0 ? sizeof(int) : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared,
                            &window);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window, 0, &bytes, &unit, &shared);
    for (int round = 1; round <= 10; ++round) {
      if (ranks->rank() == 0) __atomic_store_n(shared, round, __ATOMIC_RELEASE);
      ranks->barrier(round % 2 == 0 ? 60 : 0);
      BOOST_TEST_REQUIRE(__atomic_load_n(shared, __ATOMIC_ACQUIRE) == round);
      ranks->barrier();
    }
    MPI_Win_free(&window);
  }
}

BOOST_AUTO_TEST_CASE(a_barrier_that_a_rank_does_not_enter_in_time_is_an_error_on_the_others) {
  for (const int missing : {0, world().size() - 1}) {
    const auto ranks = world().split(0, world().rank());
    if (world().rank() != missing) BOOST_CHECK_THROW(ranks->barrier(0.05), FailureError);
    world().barrier();                                   // all have given up
    if (world().rank() == missing) ranks->barrier(0.5);  // opens the barrier that the others began
    world().barrier();
  }
}

BOOST_AUTO_TEST_CASE(a_rank_without_a_time_limit_passes_the_barrier_that_another_gave_up) {
  const auto ranks = world().split(0, world().rank());
  if (world().rank() == 0 && world().size() > 1) {
    BOOST_CHECK_THROW(ranks->barrier(0.05), FailureError);
    MPI_Send(nullptr, 0, MPI_BYTE, world().size() - 1, 0, MPI_COMM_WORLD);
  } else {
    if (world().rank() > 0 && world().rank() == world().size() - 1)
      MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    ranks->barrier();
  }
}

BOOST_AUTO_TEST_CASE(ranks_with_a_core_each_do_not_oversubscribe_their_node) {
  BOOST_TEST(!comm::oversubscribed(MPI_COMM_WORLD, {world().rank()}));
  BOOST_TEST(!comm::oversubscribed(MPI_COMM_WORLD, {1000 * world().rank()}));
  CoreSet all;
  for (int rank = 0; rank < world().size(); ++rank) all.insert(rank);
  BOOST_TEST(!comm::oversubscribed(MPI_COMM_WORLD, all));
}

BOOST_AUTO_TEST_CASE(ranks_that_share_too_few_cores_oversubscribe_their_node) {
  BOOST_TEST(comm::oversubscribed(MPI_COMM_WORLD, {3}) == (world().size() > 1));
  BOOST_TEST(comm::oversubscribed(MPI_COMM_WORLD, {3, 70}) == (world().size() > 2));
  BOOST_TEST(comm::oversubscribed(MPI_COMM_WORLD, {}) == (world().size() > 1));  // nothing is known
}

BOOST_AUTO_TEST_CASE(split_groups_ranks_by_colour_and_orders_them_by_key) {
  for (const auto& ranks : worlds()) {
    const int colour = ranks->rank() % 2;
    const auto half = ranks->split(colour, -ranks->rank());
    BOOST_TEST(half->size() == (ranks->size() + 1 - colour) / 2);
    std::vector<int> members(static_cast<std::size_t>(half->size()));
    const int mine = ranks->rank();
    half->all_gather(&mine, sizeof mine, members.data());
    BOOST_TEST(members[static_cast<std::size_t>(half->rank())] == mine);
    BOOST_TEST(std::is_sorted(members.rbegin(), members.rend()));
    for (const int member : members) BOOST_TEST(member % 2 == colour);
    const auto again = half->split(0, 0);
    BOOST_TEST(again->size() == half->size());
  }
}

BOOST_AUTO_TEST_CASE(a_negative_colour_is_refused) { BOOST_CHECK_THROW(world().split(-1, 0), UsageError); }

BOOST_AUTO_TEST_CASE(ranks_that_share_memory_are_one_node) {
  const comm::Topology& topology = world().topology();
  BOOST_TEST(topology.nodes() == 1);
  BOOST_TEST(topology.ranks_on_node(0) == world().size());
  BOOST_TEST(topology.node_major());
  BOOST_TEST(!topology.host_names[0].empty());
  for (int rank = 0; rank < world().size(); ++rank) {
    BOOST_TEST(topology.local_rank_of_rank[static_cast<std::size_t>(rank)] == rank);
  }
}

BOOST_AUTO_TEST_CASE(nodes_are_numbered_by_their_first_rank) {
  std::vector<int> layout;
  for (int rank = 0; rank < world().size(); ++rank) layout.push_back(rank % 2 == 0 ? 7 : 3);
  const auto ranks = comm::make_mpi_communicator(MPI_COMM_WORLD, layout);
  const comm::Topology& topology = ranks->topology();
  BOOST_TEST(topology.nodes() == std::min(world().size(), 2));
  BOOST_TEST(topology.node_major() == (world().size() < 3));
  for (int rank = 0; rank < world().size(); ++rank) {
    BOOST_TEST(topology.node_of_rank[static_cast<std::size_t>(rank)] == rank % 2);
    BOOST_TEST(topology.local_rank_of_rank[static_cast<std::size_t>(rank)] == rank / 2);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
