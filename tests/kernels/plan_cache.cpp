// The plans of a library: which of them are made once.
#include "kernels/plan_cache.h"

#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(plan_cache)

struct Number {
  int value;
  std::size_t hash() const { return static_cast<std::size_t>(value); }
  bool operator==(const Number&) const = default;
};

BOOST_AUTO_TEST_CASE(a_plan_in_use_stays_among_any_number_of_others) {
  std::map<int, int> made;
  kernels::PlanCache<Number, int> plans;
  const auto get = [&](int number) {
    return *plans.get({number}, [&] {
      ++made[number];
      return std::make_unique<int>(number);
    });
  };
  for (int number = 1; number < 5000; ++number) {
    BOOST_TEST_REQUIRE(get(number) == number);
    BOOST_TEST_REQUIRE(get(0) == 0);
  }
  BOOST_TEST(made[0] == 1);
  get(1);
  BOOST_TEST(made[1] == 2);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
