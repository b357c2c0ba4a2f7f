// Gathers of unequal sizes and of structured values.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "comm/mpi_calls.h"
#include "layouts.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gathers, *ranks(1, 2, 3, 4))

std::uint8_t byte_of(std::size_t rank, std::size_t index) {
  return static_cast<std::uint8_t>(rank * 89 + index * 7 + 1);
}

void check_unequal(comm::HostGroup& ranks, const std::vector<std::size_t>& bytes_of_rank, bool in_place) {
  const std::size_t total = std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), std::size_t{0});
  const auto me = static_cast<std::size_t>(ranks.rank());
  std::vector<std::uint8_t> all(total + 1, 0xaa);
  std::vector<std::uint8_t> mine(bytes_of_rank[me]);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = byte_of(me, i);
  const std::uint8_t* source = mine.data();
  if (in_place) {
    auto* own = all.data() +
                std::accumulate(bytes_of_rank.begin(), bytes_of_rank.begin() + ranks.rank(), std::size_t{0});
    std::copy(mine.begin(), mine.end(), own);
    source = own;
  }
  ranks.all_gather_unequal(source, bytes_of_rank, all.data());
  bool right = all.back() == 0xaa;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < bytes_of_rank.size(); ++rank) {
    for (std::size_t i = 0; i < bytes_of_rank[rank]; ++i) right = right && all[at++] == byte_of(rank, i);
  }
  BOOST_TEST(right, total << " bytes");
}

BOOST_AUTO_TEST_CASE(ranks_may_give_different_numbers_of_bytes_or_none) {
  const auto size = static_cast<std::size_t>(world().size());
  for (const auto& layout : layouts(world().size())) {
    for (const std::size_t message_bytes : {std::size_t{1} << 30, std::size_t{999}}) {
      BOOST_TEST_CONTEXT(text_of(layout) << ", messages of " << message_bytes) {
        const auto ranks =
            comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.message_bytes = message_bytes});
        for (const bool in_place : {false, true}) {
          std::vector<std::size_t> sizes(size);
          check_unequal(*ranks, sizes, in_place);
          for (std::size_t rank = 0; rank < size; ++rank) sizes[rank] = rank * 1500;
          check_unequal(*ranks, sizes, in_place);
          sizes.assign(size, 0);
          sizes.back() = 5000;
          check_unequal(*ranks, sizes, in_place);
        }
      }
    }
  }
  std::vector<std::size_t> too_few(size - 1);
  BOOST_CHECK_THROW(world().all_gather_unequal(nullptr, too_few, nullptr), UsageError);
}

/// Rank a sends (a * 3 + b) % 4 * unit bytes to rank b.
void check_all_to_all(comm::HostGroup& ranks, std::size_t unit) {
  const auto size = static_cast<std::size_t>(ranks.size()), me = static_cast<std::size_t>(ranks.rank());
  const auto bytes = [&](std::size_t from, std::size_t to) { return (from * 3 + to) % 4 * unit; };
  std::vector<std::vector<std::byte>> out(size), in(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    for (std::size_t i = 0; i < bytes(me, peer); ++i)
      out[peer].push_back(static_cast<std::byte>(byte_of(me * 5 + peer, i)));
    in[peer].resize(bytes(peer, me));
  }
  const std::vector<std::span<const std::byte>> to_rank(out.begin(), out.end());
  const std::vector<std::span<std::byte>> from_rank(in.begin(), in.end());
  ranks.all_to_all(to_rank, from_rank);
  bool right = true;
  for (std::size_t peer = 0; peer < size; ++peer) {
    for (std::size_t i = 0; i < in[peer].size(); ++i)
      right = right && in[peer][i] == static_cast<std::byte>(byte_of(peer * 5 + me, i));
  }
  BOOST_TEST(right, unit);
}

BOOST_AUTO_TEST_CASE(each_rank_sends_any_number_of_bytes_to_each_other) {
  for (const auto& layout : layouts(world().size())) {
    for (const std::size_t message_bytes : {std::size_t{1} << 30, std::size_t{999}}) {
      BOOST_TEST_CONTEXT(text_of(layout) << ", messages of " << message_bytes) {
        const auto ranks =
            comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.message_bytes = message_bytes});
        for (const std::size_t unit : {0, 1, 5000, 100'000}) check_all_to_all(*ranks, unit);
      }
    }
  }
  const std::vector<std::span<const std::byte>> too_few(static_cast<std::size_t>(world().size()) - 1);
  BOOST_CHECK_THROW(world().all_to_all(too_few, {}), UsageError);
}

BOOST_AUTO_TEST_CASE(structured_values_arrive_in_rank_order_with_every_bit) {
  const double third = 1.0 / 3.0;
  const nlohmann::json mine = {{"rank", world().rank()},
                               {"loss", third / (world().rank() + 1)},
                               {"worst", -std::numeric_limits<double>::infinity()},
                               {"undefined", std::nan("")},
                               {"text", std::string(static_cast<std::size_t>(world().rank()), 'x')},
                               {"nothing", nullptr},
                               {"large", std::uint64_t{1} << 63}};
  const std::vector<nlohmann::json> all = comm::all_gather_json(world(), mine);
  BOOST_REQUIRE_EQUAL(all.size(), static_cast<std::size_t>(world().size()));
  for (int rank = 0; rank < world().size(); ++rank) {
    const nlohmann::json& value = all[static_cast<std::size_t>(rank)];
    BOOST_TEST(value.at("rank").get<int>() == rank);
    BOOST_TEST(value.at("loss").get<double>() == third / (rank + 1));
    BOOST_TEST(value.at("worst").get<double>() == -std::numeric_limits<double>::infinity());
    BOOST_TEST(std::isnan(value.at("undefined").get<double>()));
    BOOST_TEST(value.at("text").get<std::string>().size() == static_cast<std::size_t>(rank));
    BOOST_TEST(value.at("nothing").is_null());
    BOOST_TEST(value.at("large").get<std::uint64_t>() == std::uint64_t{1} << 63);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
