// What fails on one rank becomes the same error on all.
#include "lockstep/comm/agreement.h"

#include <boost/test/unit_test.hpp>
#include <new>
#include <string>

#include "lockstep/base/error.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(agreement, *ranks(1, 2, 3, 4))

struct Caught {
  std::string text = "nothing";
  ExitCode code = ExitCode::done;
};

template <class Action>
Caught caught(const Action& action) {
  try {
    comm::run_on_all(world(), action);
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {};
}

BOOST_AUTO_TEST_CASE(an_action_that_succeeds_everywhere_runs_once_and_throws_nothing) {
  int runs = 0;
  BOOST_TEST(caught([&] { ++runs; }).text == "nothing");
  BOOST_TEST(runs == 1);
}

BOOST_AUTO_TEST_CASE(the_failure_of_one_rank_is_thrown_on_all_with_its_rank_in_front) {
  for (int failing = 0; failing < world().size(); ++failing) {
    const Caught error = caught([&] {
      if (world().rank() == failing) throw DataError("digits.h5: no /x");
    });
    BOOST_TEST(error.text == (world().size() == 1 ? "digits.h5: no /x"
                                                  : fmt::format("rank {}: digits.h5: no /x", failing)));
    BOOST_TEST((error.code == ExitCode::data));
  }
}

BOOST_AUTO_TEST_CASE(the_same_failure_everywhere_is_said_once) {
  const Caught error = caught([] { throw UsageError("unknown key"); });
  BOOST_TEST(error.text == "unknown key");
  BOOST_TEST((error.code == ExitCode::usage));
}

BOOST_AUTO_TEST_CASE(different_failures_give_the_lowest_rank_s_and_count_the_others) {
  const Caught error = caught([] {
    if (world().rank() == 0) throw TrainingError("loss on 0");
    throw FailureError("disk on {}", world().rank());
  });
  const int others = world().size() - 1;
  const std::string tail =
      others == 0 ? "" : fmt::format("; and {} more rank{}", others, others == 1 ? "" : "s");
  BOOST_TEST(error.text == "loss on 0" + tail);
  BOOST_TEST((error.code == ExitCode::training));
}

BOOST_AUTO_TEST_CASE(the_class_of_the_error_survives) {
  const int last = world().size() - 1;
  const auto fail = [&](auto&& action) {
    comm::run_on_all(world(), [&] {
      if (world().rank() == last) action();
    });
  };
  BOOST_CHECK_THROW(fail([] { throw UsageError("a"); }), UsageError);
  BOOST_CHECK_THROW(fail([] { throw DataError("a"); }), DataError);
  BOOST_CHECK_THROW(fail([] { throw TrainingError("a"); }), TrainingError);
  BOOST_CHECK_THROW(fail([] { throw FailureError("a"); }), FailureError);
  BOOST_CHECK_EXCEPTION(fail([] { throw Error(ExitCode::preempted, "a"); }), Error,
                        [](const Error& error) { return error.code() == ExitCode::preempted; });
}

BOOST_AUTO_TEST_CASE(exceptions_of_other_kinds_become_failures) {
  const Caught memory = caught([] { throw std::bad_alloc(); });
  BOOST_TEST((memory.code == ExitCode::failure));
  BOOST_TEST(memory.text == comm::out_of_memory);
  BOOST_TEST(caught([] { throw 7; }).text == "an exception of unknown type");
}

BOOST_AUTO_TEST_CASE(bits_of_any_are_those_set_on_some_rank) {
  const std::uint64_t mine = std::uint64_t{1} << (63 - world().rank());
  std::uint64_t wanted = 0;
  for (int rank = 0; rank < world().size(); ++rank) wanted |= std::uint64_t{1} << (63 - rank);
  BOOST_TEST(comm::bits_of_any(world(), mine) == wanted);
  BOOST_TEST(comm::bits_of_any(world(), 0) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
