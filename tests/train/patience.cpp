// train.patience: which evaluations count, and that the counts in a checkpoint continue.
#include <boost/test/unit_test.hpp>
#include <limits>

#include "train/run/evaluations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(patience)

using train::Patience;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The number of evaluations after which it is over; 0: it never is.
std::size_t ends_after(Patience patience, std::initializer_list<double> values) {
  std::int64_t step = 0;
  for (const double value : values) {
    patience.add(step += 10, value);
    if (patience.is_over()) return static_cast<std::size_t>(step / 10);
  }
  return 0;
}

BOOST_AUTO_TEST_CASE(so_many_evaluations_in_a_row_without_a_better_value_end_it) {
  BOOST_TEST(ends_after({2, "eval_loss", Better::lower}, {3, 2, 2.5, 1, 1, 1}) ==
             6U);  // as good is no better
  BOOST_TEST(ends_after({2, "eval_r2", Better::higher}, {3, 2, 4, 5, 5, 4}) == 6U);
  BOOST_TEST(ends_after({2, "eval_loss", Better::lower}, {3, nan, 2, nan, nan}) == 5U);
  BOOST_TEST(ends_after({2, "eval_loss", Better::lower}, {nan, nan}) == 2U);
  BOOST_TEST(ends_after({0, "eval_loss", Better::lower}, {1, 2, 3, 4}) == 0U);
}

BOOST_AUTO_TEST_CASE(counts_continue_from_a_checkpoint_and_no_step_counts_twice) {
  Patience before(3, "eval_loss", Better::lower);
  for (const std::int64_t step : {10, 20, 30}) before.add(step, 1.0 / 3);
  Patience after(3, "eval_loss", Better::lower), more(4, "eval_loss", Better::lower),
      other(3, "eval_rmse", Better::lower);
  for (Patience* const patience : {&after, &more, &other}) patience->restore(before.to_text());
  BOOST_TEST(after.to_text() == before.to_text());
  after.add(30, 1);
  BOOST_TEST(!after.is_over());
  for (Patience* const patience : {&after, &more, &other}) patience->add(40, 1.0 / 3);
  BOOST_TEST(after.is_over());
  BOOST_TEST(after.why() == "3 evaluations (train.patience) did not improve eval_loss, 0.3333 after step 10");
  BOOST_TEST(!more.is_over());
  BOOST_TEST(!other.is_over());
  for (const char* const damaged : {"", "eval_loss", "eval_loss x y z none", "\"eval_loss"}) {
    Patience fresh(3, "eval_loss", Better::lower);
    try {
      fresh.restore(damaged);
    } catch (const std::exception&) {
    }
    BOOST_TEST(!fresh.is_over());
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
