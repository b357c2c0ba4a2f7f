// What is counted instead of done: launches, and sectors of 32 bytes that blocks read and write.
#include "emulated_gpu/counting.h"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(counting_test)

using emulated_gpu::Counting;

nlohmann::json kernels_of(const Counting& counted, bool saw_bytes = true) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "list.json").string();
  counted.write(path, saw_bytes);
  return nlohmann::json::parse(std::ifstream(path)).at("kernels");
}

/// Each block copies `bytes` of its own, 16 at a time.
void copy(Counting& counted, unsigned blocks, std::uintptr_t bytes) {
  constexpr std::uintptr_t from = 1 << 20, to = 1 << 30;
  const unsigned run = counted.begin_launch("copy", dim3(blocks), dim3(32));
  for (std::uintptr_t at = 0; at < run * bytes; at += 16) {
    counted.access<false>(from + at, 16);
    counted.access<true>(to + at, 16);
  }
  counted.end_launch();
}

BOOST_AUTO_TEST_CASE(a_copy_moves_its_bytes_twice_whatever_part_of_its_blocks_runs) {
  for (const unsigned blocks : {1u, 16u, 17u, 1000u, 100'000u}) {
    Counting counted;
    copy(counted, blocks, 4096);
    copy(counted, blocks, 4096);
    const nlohmann::json row = kernels_of(counted).at(0);
    BOOST_TEST(row.at("count") == 2);
    BOOST_TEST(row.at("bytes").get<double>() == 2 * 2 * 4096.0 * blocks, boost::test_tools::tolerance(1e-6));
  }
}

BOOST_AUTO_TEST_CASE(a_sector_counts_once_a_launch_however_often_it_is_read) {
  Counting counted;
  for (int launch = 0; launch < 2; ++launch) {
    counted.begin_launch("broadcast", dim3(4), dim3(32));
    for (int again = 0; again < 100; ++again) counted.access<false>((1 << 20) + 30, 4);  // in two sectors
    counted.end_launch();
  }
  BOOST_TEST(kernels_of(counted).at(0).at("bytes") == 2 * 2 * 32);
  BOOST_TEST(!kernels_of(counted, false).at(0).contains("bytes"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
