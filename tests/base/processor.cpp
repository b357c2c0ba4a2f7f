// What the processor does for us beyond the language.
#include "base/processor.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <vector>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(processor)

BOOST_AUTO_TEST_CASE(copies_past_the_caches_are_copies_of_any_size_at_any_place) {
  constexpr std::size_t most = 300, places = 70;
  std::vector<std::byte> source(most + places);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t bytes = 0; bytes <= most; ++bytes) {
    for (std::size_t place = 0; place < places; place += bytes % 3 + 1) {
      const std::size_t from = (place * 5) % places;
      std::vector<std::byte> target(most + 2 * places, std::byte{0});
      copy_past_caches(target.data() + place, source.data() + from, bytes);
      const auto begin = target.begin() + static_cast<std::ptrdiff_t>(place);
      const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
      const auto zero = [](std::byte value) { return value == std::byte{0}; };
      BOOST_REQUIRE(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)));
      BOOST_REQUIRE(std::all_of(target.begin(), begin, zero) && std::all_of(end, target.end(), zero));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
