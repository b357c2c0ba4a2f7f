// The main of a test program with suites that run on several ranks. Started by mpirun, every rank runs the
// suites that name this number of ranks, in the same order, and a case that fails on one rank ends the
// program on all of them (its peers may be waiting in a collective). Started plain, it runs the suites that
// name no number, and MPI is not touched.
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_NO_MAIN
#include <mpi.h>

#include <boost/test/framework.hpp>
#include <boost/test/tree/observer.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <string>

#include "support/place.h"
#include "support/selection.h"
#include "support/world.h"

namespace lockstep::test {
namespace {

comm::CpuCommunicator* communicator = nullptr;
bool launched = false;

/// Ends the world when a case has failed here: a peer cannot know.
class EndOnFailure final : public boost::unit_test::test_observer {
 public:
  void assertion_result(boost::unit_test::assertion_result result) override {
    failed_ = failed_ || result == boost::unit_test::AR_FAILED;
  }
  void exception_caught(const boost::execution_exception&) override { failed_ = true; }
  void test_unit_finish(const boost::unit_test::test_unit& unit, unsigned long) override {
    if (failed_ && unit.p_type == boost::unit_test::TUT_CASE) {
      std::fprintf(stderr, "rank %d of %d: %s failed\n", communicator->rank(), communicator->size(),
                   unit.full_name().c_str());
      communicator->abort(1);
    }
  }

 private:
  bool failed_ = false;
};

bool choose_cases() {
  keep_cases_of(launched ? communicator->size() : 0);
  return true;
}

}  // namespace

comm::CpuCommunicator& world() { return *communicator; }

// Programs that cannot run everywhere, or over MPI, bring their own.
[[gnu::weak]] std::string reason_to_skip() { return {}; }
[[gnu::weak]] std::unique_ptr<comm::CpuCommunicator> transport_over(comm::CpuCommunicator&) {
  return nullptr;
}

}  // namespace lockstep::test

int main(int argc, char** argv) {
  lockstep::comm::World world(argc, argv);
  lockstep::test::communicator = &world.communicator();
  int initialised = 0;
  MPI_Initialized(&initialised);
  lockstep::test::launched = initialised != 0;
  if (const std::string reason = lockstep::test::reason_to_skip(); !reason.empty()) {
    if (world.communicator().rank() == 0) std::printf("skipped: %s\n", reason.c_str());
    return 77;  // which CTest reports as skipped: never as passed
  }
  const auto transport = lockstep::test::transport_over(world.communicator());
  if (transport) lockstep::test::communicator = transport.get();
  lockstep::test::EndOnFailure end_on_failure;
  if (lockstep::test::launched) boost::unit_test::framework::register_observer(end_on_failure);
  const int result = boost::unit_test::unit_test_main(&lockstep::test::choose_cases, argc, argv);
  boost::unit_test::framework::deregister_observer(end_on_failure);
  return result;
}
