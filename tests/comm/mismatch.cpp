// Ranks that do different things under one number get one error that shows both, and write nothing.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <string>
#include <vector>

#include "comm/mpi_calls.h"
#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(mismatch, *ranks(2, 3, 4))

/// The text of the UsageError that the action ends with; empty without one.
std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

/// A fresh one-node communicator, as one that failed is good for nothing more.
struct Fixture {
  std::unique_ptr<comm::CpuCommunicator> ranks =
      comm::make_mpi_communicator(MPI_COMM_WORLD, std::vector<int>(static_cast<std::size_t>(world().size())));
  std::unique_ptr<comm::FlatBuffer> flat_buffer = ranks->allocate_buffer(4096, 2);
  int size = ranks->size();
  bool odd = ranks->rank() == size - 1;  ///< the rank that does something else

  comm::TreeSum vector(std::size_t offset_bytes = 64, std::int64_t count = 100,
                       DType dtype = DType::float32) {
    return {flat_buffer.get(), offset_bytes, count, dtype};
  }

  /// Two collectives that go well, then one that the last rank starts differently.
  void check(const std::function<comm::Work()>& right, const std::function<comm::Work()>& wrong,
             const std::vector<std::string>& words) {
    const comm::ShardMap map(size, size);
    ranks->start_tree_sum(vector(), map);
    ranks->order_after(ranks->start_tree_sum(vector(), map));
    auto* elements = reinterpret_cast<float*>(flat_buffer->accumulator(0));
    std::fill(elements, elements + 1024, 3.0f);
    const std::string text = failure_of([&] { ranks->order_after(odd ? wrong() : right()); });
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(text.starts_with("collective 3: rank 0 started "));
      BOOST_TEST(text.find(fmt::format(", rank {} ", size - 1)) != std::string::npos);
      for (const std::string& word : words) BOOST_TEST(text.find(word) != std::string::npos, word);
      const auto texts = world().all_gather_texts(text);
      BOOST_TEST(std::count(texts.begin(), texts.end(), text) == size);
      // It stays so: nobody waits forever for what cannot be done.
      BOOST_TEST(failure_of([&] { ranks->order_after(3); }) == text);
      BOOST_TEST(std::count(elements, elements + 1024, 3.0f) == 1024);
    }
  }
};

BOOST_FIXTURE_TEST_SUITE(collectives, Fixture)

BOOST_AUTO_TEST_CASE(another_offset) {
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(64), map); },
        [&] { return ranks->start_tree_sum(vector(128), map); },
        {"a sum of 100 float32 elements at byte 64", "a sum of 100 float32 elements at byte 128"});
}

BOOST_AUTO_TEST_CASE(another_count) {
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(64, 100), map); },
        [&] { return ranks->start_tree_sum(vector(64, 0), map); }, {"of 100 float32", "of 0 float32"});
}

BOOST_AUTO_TEST_CASE(another_element_type) {
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(), map); },
        [&] { return ranks->start_tree_sum(vector(64, 100, DType::float64), map); },
        {"100 float32", "100 float64"});
}

BOOST_AUTO_TEST_CASE(another_kind) {
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(), map); },
        [&] { return ranks->start_all_gather(vector(), comm::even_slices(100, size)); },
        {"started a sum", "an all-gather", fmt::format("over {} shards", size), "over 0 shards"});
}

BOOST_AUTO_TEST_CASE(another_number_of_shards) {
  check([&] { return ranks->start_tree_sum(vector(), comm::ShardMap(size, size)); },
        [&] { return ranks->start_tree_sum(vector(), comm::ShardMap(2 * size, size)); },
        {fmt::format("over {} shards", size), fmt::format("over {} shards", 2 * size)});
}

BOOST_AUTO_TEST_CASE(other_slices) {
  std::vector<std::vector<comm::ElementRange>> all_mine(static_cast<std::size_t>(size));
  all_mine.front() = {{0, 100}};
  const comm::Slices other(100, all_mine);
  check([&] { return ranks->start_all_gather(vector(), comm::even_slices(100, size)); },
        [&] { return ranks->start_all_gather(vector(), other); }, {"in slices "});
}

BOOST_AUTO_TEST_CASE(another_flat_buffer) {
  const auto second = ranks->allocate_buffer(4096, 2);
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(), map); },
        [&] {
          return ranks->start_tree_sum({second.get(), 64, 100, DType::float32}, map);
        },
        {"of flat buffer 1", "of flat buffer 2"});
}

BOOST_AUTO_TEST_CASE(another_communication_dtype) {
  const comm::ShardMap map(size, size);
  check([&] { return ranks->start_tree_sum(vector(), map); },
        [&] {
          return ranks->start_tree_sum({flat_buffer.get(), 64, 100, DType::float32, DType::bfloat16}, map);
        },
        {"sent as float32", "sent as bfloat16"});
}

BOOST_AUTO_TEST_CASE(another_order_of_many_in_flight) {
  const comm::ShardMap map(size, size);
  const std::string text = failure_of([&] {
    comm::Work last = 0;
    for (int i = 0; i < 9; ++i) {
      const bool swapped = odd && (i == 6 || i == 7);
      const int index = swapped ? 13 - i : i;
      last = ranks->start_tree_sum(vector(static_cast<std::size_t>(index) * 64, 16), map);
    }
    ranks->order_after(last);
  });
  BOOST_TEST(text.starts_with("collective 7: rank 0 started a sum of 16 float32 elements at byte 384"), text);
  BOOST_TEST(text.find("at byte 448") != std::string::npos, text);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(gathers, Fixture)

BOOST_AUTO_TEST_CASE(another_number_of_bytes_of_any_size) {
  for (const auto& sizes :
       std::vector<std::pair<std::size_t, std::size_t>>{{8, 16}, {8, 0}, {100, 100000}, {50000, 60000}}) {
    const std::size_t bytes = sizes.first, odd_bytes = sizes.second;
    const auto fresh = ranks->split(0, 0);
    std::vector<char> mine(100000), all(100000 * static_cast<std::size_t>(size), 'a');
    const std::string text =
        failure_of([&] { fresh->all_gather(mine.data(), odd ? odd_bytes : bytes, all.data()); });
    BOOST_TEST(
        text.starts_with(fmt::format("rank 0 calls HostGroup::all_gather (a gather of {} bytes of each "
                                     "rank), but rank {} calls HostGroup::all_gather (a gather of {} ",
                                     bytes, size - 1, odd_bytes)),
        text);
    BOOST_TEST((std::count(all.begin(), all.end(), 'a') == static_cast<std::ptrdiff_t>(all.size())));
  }
}

BOOST_AUTO_TEST_CASE(other_sizes_of_the_ranks) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(size), 10);
  if (odd) {
    sizes.front() = 12;  // the same bytes in all
    sizes.back() = 8;
  }
  std::vector<char> mine(100), all(1000);
  const std::string text = failure_of([&] { ranks->all_gather_unequal(mine.data(), sizes, all.data()); });
  BOOST_TEST(text.find(" bytes of all ranks, sizes ") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(another_kind_of_gather) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(size), 8);
  std::vector<char> mine(100), all(1000);
  const std::string text = failure_of([&] {
    if (odd) {
      ranks->all_gather_unequal(mine.data(), sizes, all.data());
    } else {
      ranks->all_gather(mine.data(), 8, all.data());
    }
  });
  BOOST_TEST(text.find("calls HostGroup::all_gather, but rank") != std::string::npos, text);
  BOOST_TEST(text.find("calls HostGroup::all_gather_unequal") != std::string::npos, text);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_message_of_another_length_between_nodes_is_an_error) {
  std::vector<int> apart(static_cast<std::size_t>(world().size()));
  for (std::size_t rank = 0; rank < apart.size(); ++rank) apart[rank] = static_cast<int>(rank);
  for (const std::int64_t odd_count : {100, 1500}) {
    // Messages stay in flight on a communicator that failed: it and the memory they go to are never
    // destroyed.
    comm::CpuCommunicator& nodes = *comm::make_mpi_communicator(MPI_COMM_WORLD, apart).release();
    comm::FlatBuffer& flat_buffer = *nodes.allocate_buffer(1 << 16, 2).release();
    const comm::ShardMap map(nodes.size(), nodes.size());
    const std::int64_t count = nodes.rank() == 0 ? 1000 : odd_count;
    // The others have sent their partial sums before rank 0 starts: the first rank that notices sends no
    // more.
    if (nodes.rank() == 0) world().barrier();
    std::string text = failure_of([&] {
      nodes.start_tree_sum({&flat_buffer, 0, count, DType::float32}, map);
    });
    while (text.empty() && nodes.rank() == 0) text = failure_of([&] { nodes.progress(); });
    if (nodes.rank() == 0) {
      BOOST_TEST(text.starts_with("collective 1: rank 0 expected a message of "), text);
      BOOST_TEST(text.find("every rank must start the same collectives") != std::string::npos, text);
    }
    if (nodes.rank() != 0) world().barrier();
    world().barrier();
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
