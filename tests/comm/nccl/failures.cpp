// What fails inside NCCL, which a GPU does not do when asked to: pretended ones only.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <thread>

#include "emulated_gpu/runtime.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/nccl.h"
#include "pretended_nccl.h"
#include "support/world.h"

namespace comm = lockstep::comm;
using lockstep::FailureError;
using lockstep::emulated_gpu::faults;
using lockstep::test::pretended_nccl;
using lockstep::test::world;

namespace {

std::unique_ptr<comm::Communicator> make(double timeout_s) {
  return comm::make_nccl_communicator(world(), {.share_gpu = true, .timeout_s = timeout_s});
}

auto says(const std::string& text) {
  return [text](const FailureError& error) {
    BOOST_TEST_INFO(error.what());
    return std::string(error.what()).find(text) != std::string::npos;
  };
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_start_that_fails_on_one_rank_fails_on_all_and_is_taken_for_a_start_on_none) {
  if (world().size() == 1) return;
  const auto ranks = make(0.2);
  const int before = pretended_nccl().aborted;
  pretended_nccl().start_breaks = world().rank() + 1 == world().size();
  BOOST_CHECK_EXCEPTION(ranks->allocate_arena(64, 1), FailureError,
                        says("have not come to it for 0.1 s"));  // half of what a watchdog would give
  pretended_nccl().start_breaks = false;
  BOOST_TEST(pretended_nccl().aborted == before + 1);
  BOOST_CHECK_EXCEPTION(ranks->allocate_arena(64, 1), FailureError, [](const FailureError& error) {
    return std::string(error.what()).find("failed before") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(memory_is_said_to_lack_only_where_it_does) {
  const auto ranks = make(10);
  const auto refused = [&](const std::string& text) {
    BOOST_CHECK_EXCEPTION(ranks->allocate_arena(64, 1), FailureError, says(text));
  };
  if (world().size() == 1) {
    faults().memory = cudaErrorMemoryAllocation;
    refused("the GPU has no");
    faults().memory = cudaErrorDevicesUnavailable;
    refused("cudaMalloc failed on rank 0");
    faults().memory = cudaSuccess;
  } else {
    const int before = pretended_nccl().memories;
    pretended_nccl().memory_breaks = world().rank() + 1 == world().size();
    refused("ncclMemAlloc of");
    faults().free_bytes = 64;
    refused("the GPU has no");
    pretended_nccl().memory_breaks = false;
    BOOST_TEST(pretended_nccl().memories == before);  // of those that had it, too
    faults().free_bytes = std::size_t{1} << 40;
  }
  ranks->allocate_arena(64, 1);  // it is as good as before
}

BOOST_AUTO_TEST_CASE(a_part_that_cannot_be_made_on_one_rank_is_made_on_none) {
  const auto ranks = make(10);
  if (world().rank() + 1 == world().size()) faults().streams = cudaErrorDevicesUnavailable;
  BOOST_CHECK_EXCEPTION(ranks->split(0, 0), FailureError, says("cudaStreamCreate failed on rank"));
  faults().streams = cudaSuccess;
  ranks->split(0, 0);
}

BOOST_AUTO_TEST_CASE(an_arena_that_cannot_be_registered_leaves_no_memory_behind) {
  if (world().size() == 1) return;
  const auto ranks = make(10);
  const int before = pretended_nccl().memories;
  pretended_nccl().register_breaks = true;
  BOOST_CHECK_THROW(ranks->allocate_arena(64, 1), FailureError);
  pretended_nccl().register_breaks = false;
  BOOST_TEST(pretended_nccl().memories == before);
}

BOOST_AUTO_TEST_CASE(an_arena_that_is_left_keeps_its_memory_and_not_the_connection) {
  if (world().size() == 1) return;
  const int aborted = pretended_nccl().aborted, memories = pretended_nccl().memories;
  try {
    const auto ranks = make(10);
    auto arena = ranks->allocate_arena(64, 1);
    BOOST_TEST(arena->leave());
    throw FailureError("a step has failed");
  } catch (const FailureError&) {
  }
  BOOST_TEST(pretended_nccl().aborted == aborted + 1);
  BOOST_TEST(pretended_nccl().memories == memories + 1);
}

BOOST_AUTO_TEST_CASE(it_ends_although_a_thread_that_asks_for_errors_gets_no_answer) {
  if (world().size() == 1) return;
  auto ranks = make(0.2);
  ranks->allocate_arena(64, 1).reset();
  world().barrier();
  pretended_nccl().silent = true;
  std::thread asks([&, communicator = ranks.get()] { communicator->async_error(); });
  while (pretended_nccl().asked == 0) std::this_thread::yield();
  ranks.reset();
  BOOST_TEST(pretended_nccl().silent);  // nobody has waited for the answer
  pretended_nccl().silent = false;
  asks.join();
}

BOOST_AUTO_TEST_CASE(ranks_that_would_share_a_gpu_are_told_which) {
  ::unsetenv("LOCKSTEP_SHARE_GPU");
  const std::string problem = comm::sharing_problem(world(), 0);
  BOOST_TEST((world().size() > 1) == (problem.find("ranks 0 and 1 both use GPU") == 0));
  BOOST_TEST(comm::sharing_problem(world(), -1) == "");  // ranks without a GPU share none
  ::setenv("LOCKSTEP_SHARE_GPU", "1", 1);
  BOOST_TEST(comm::sharing_problem(world(), 0) == "");
}
