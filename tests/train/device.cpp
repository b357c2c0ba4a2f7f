// Which device a run computes on: a pure function of what its ranks have.
#include "train/device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/session.h"

#include "support/fake_device.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(device)

using train::choose_device;
using train::RankDevices;

const std::vector<RankDevices> none{{0, "", "", "n0"}}, one{{1, "", "", "n0"}};
const std::vector<RankDevices> four{
    {4, "", "", "n0"}, {4, "", "", "n0"}, {4, "", "", "n1"}, {4, "", "", "n1"}};
const std::vector<RankDevices> mixed{{1, "", "", "n0"}, {0, "", "", "n1"}};

BOOST_AUTO_TEST_CASE(ranks_of_a_machine_take_its_gpus_in_turn) {
  BOOST_TEST(train::gpu_of_rank(0, 1) == 0);
  BOOST_TEST(train::gpu_of_rank(3, 8) == 3);
  BOOST_TEST(train::gpu_of_rank(3, 1) == 0);  // each rank is shown its own, or they share one
  BOOST_TEST(train::gpu_of_rank(5, 4) == 1);
}

BOOST_AUTO_TEST_CASE(auto_takes_gpus_where_every_rank_has_one_and_this_build_can_use_them) {
  BOOST_TEST((choose_device("auto", true, one).kind == Device::Kind::cuda));
  BOOST_TEST((choose_device("auto", true, four).kind == Device::Kind::cuda));
  BOOST_TEST((choose_device("auto", true, none).kind == Device::Kind::cpu));
  BOOST_TEST((choose_device("auto", false, one).kind == Device::Kind::cpu));
  BOOST_TEST(choose_device("auto", true, none).remark.empty());
}

BOOST_AUTO_TEST_CASE(auto_says_why_gpus_stand_idle) {
  const auto broken =
      choose_device("auto", true, std::vector<RankDevices>{{0, "old driver", "a newer one", "n0"}});
  BOOST_TEST(contains(broken.remark, "old driver; a newer one"));
}

BOOST_AUTO_TEST_CASE(ranks_with_one_gpu_between_them_do_not_take_it_unasked) {
  const std::vector<RankDevices> two{{1, "", "", "n0"}, {1, "", "", "n0"}};
  const std::string sharing = "ranks 0 and 1 both use GPU 3b of n0";
  BOOST_TEST((choose_device("auto", true, two, sharing).kind == Device::Kind::cpu));
  BOOST_TEST(contains(choose_device("auto", true, two, sharing).remark, sharing));
  BOOST_CHECK_EXCEPTION(choose_device("cuda", true, two, sharing), UsageError, mentions(sharing));
  BOOST_TEST((choose_device("cpu", true, two, sharing).remark.empty()));
  BOOST_TEST((choose_device("cuda", true, two).kind == Device::Kind::cuda));  // they may share
}

BOOST_AUTO_TEST_CASE(gpus_of_several_kinds_are_told) {
  const auto remark_of = [](const char* first, const char* second) {
    const std::vector<RankDevices> two{{1, "", "", "n0", first}, {1, "", "", "n1", second}};
    BOOST_TEST((choose_device("cuda", true, two).kind == Device::Kind::cuda));
    return choose_device("auto", true, two).remark;
  };
  BOOST_TEST(remark_of("NVIDIA H100", "NVIDIA H100") == "");
  BOOST_TEST(remark_of("NVIDIA H100", "NVIDIA H200")
                 .starts_with("rank 1 computes on NVIDIA H200, and rank 0 on NVIDIA H100"));
}

BOOST_AUTO_TEST_CASE(a_gpu_of_any_rank_whose_kernels_are_compiled_first_is_told) {
  std::vector<RankDevices> two{{1, "", "", "n0", "NVIDIA H100"}, {1, "", "", "n1", "NVIDIA H200"}};
  two[1].code = "no machine code; build it";
  const std::string remark = choose_device("cuda", true, two).remark;
  BOOST_TEST(contains(remark, "rank 1 on n1: no machine code; build it"));
  BOOST_TEST(contains(remark, "NVIDIA H200"));  // which differs as well
}

BOOST_AUTO_TEST_CASE(cpu_is_the_cpu_whatever_there_is) {
  BOOST_TEST((choose_device("cpu", true, mixed).kind == Device::Kind::cpu));
}

BOOST_AUTO_TEST_CASE(what_is_missing_is_said_with_its_place) {
  BOOST_CHECK_EXCEPTION(choose_device("cuda", false, one), UsageError,
                        mentions("this build computes on CPUs only"));
  BOOST_CHECK_EXCEPTION(choose_device("cuda", true, none), UsageError, mentions("n0 has no GPU"));
  BOOST_CHECK_EXCEPTION(choose_device("cuda", true, mixed), UsageError, mentions("rank 1 on n1 has no"));
  BOOST_CHECK_EXCEPTION(choose_device("auto", true, mixed), UsageError, mentions("other ranks have one"));
  BOOST_CHECK_EXCEPTION(choose_device("tpu", true, one), UsageError, mentions("auto, cpu, cuda"));
}

BOOST_AUTO_TEST_CASE(a_cause_is_said_with_its_own_remedy_and_no_other) {
  const auto text_of = [](const std::string& asked, const std::vector<RankDevices>& of_rank) {
    try {
      choose_device(asked, true, of_rank);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::vector<RankDevices> broken{{1, "", "", "n0"}, {0, "no libcudnn", "load it", "n1"}};
  for (const std::string asked : {"cuda", "auto"}) {
    const std::string absent = text_of(asked, mixed), unloaded = text_of(asked, broken);
    BOOST_TEST_CONTEXT(absent) {
      BOOST_TEST(contains(absent, "rank 1 on n1 has no GPU, but other ranks have one; ask the scheduler"));
      BOOST_TEST(!contains(absent, "--gpus-per-task"));  // it hides the GPUs of a node from one another
    }
    BOOST_TEST_CONTEXT(unloaded) {
      BOOST_TEST(
          contains(unloaded, "rank 1 on n1 can use no GPU, but other ranks can: no libcudnn; load it, or"));
      BOOST_TEST(!contains(unloaded, "scheduler"));
    }
  }
}

/// What the tests of training on a device rest on.
BOOST_AUTO_TEST_CASE(a_pointer_into_the_fake_device_ends_the_program) {
  const auto device = make_fake_device();
  const Tensor tensor = device->empty({4}, DType::float32, 1);
  device->fill(tensor, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    ::_exit(*static_cast<volatile float*>(tensor.raw()) == 1 ? 0 : 1);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
