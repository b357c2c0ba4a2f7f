#include "lockstep/base/random.h"

#include <boost/test/unit_test.hpp>
#include <set>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(random)

BOOST_AUTO_TEST_CASE(every_part_of_the_key_changes_the_stream) {
  const RandomKey key{1, purpose_of("dropout"), 7, 3};
  std::set<std::uint32_t> draws{Random(key).bits(0)};
  draws.insert(Random({2, key.purpose, key.step, key.shard}).bits(0));
  draws.insert(Random({1, purpose_of("crop"), key.step, key.shard}).bits(0));
  draws.insert(Random({1, key.purpose, 8, key.shard}).bits(0));
  draws.insert(Random({1, key.purpose, key.step, 4}).bits(0));
  BOOST_TEST(draws.size() == 5u);
}

BOOST_AUTO_TEST_CASE(the_philox_rounds_are_those_of_random123) {
  // Random123's known answer for philox4x32-10 with counter 0 and key 0. The key is mixed, so invert the mix:
  // seed and purpose are chosen such that the mixed key is 0.
  const std::uint64_t purpose = 5;
  const RandomKey zero{mix_bits(purpose + 0x9e3779b97f4a7c15u), purpose, 0, 0};
  const auto words = Random(zero).block(0);
  BOOST_TEST(words[0] == 0x6627e8d5u);
  BOOST_TEST(words[1] == 0xe169c58du);
  BOOST_TEST(words[2] == 0xbc57ac4cu);
  BOOST_TEST(words[3] == 0x9b00dbd8u);
}

BOOST_AUTO_TEST_CASE(uniform_and_normal_have_their_moments) {
  const Random random({11, purpose_of("test"), 0, 0});
  const int n = 200000;
  double mean = 0, normal_mean = 0, normal_square = 0;
  for (int i = 0; i < n; ++i) {
    const float u = random.uniform(i), z = random.normal(i);
    BOOST_REQUIRE(u >= 0.0f && u < 1.0f);
    mean += u, normal_mean += z, normal_square += z * z;
  }
  BOOST_TEST(std::abs(mean / n - 0.5) < 0.005);
  BOOST_TEST(std::abs(normal_mean / n) < 0.01);
  BOOST_TEST(std::abs(normal_square / n - 1) < 0.02);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
