// A profile of whole steps: the same bits, and all arithmetic of the model in it.
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "kernels/profile.h"
#include "lockstep/models/gpt.h"
#include "support/world.h"
#include "train/run/benchmark.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(profile, *ranks(1, 2))

double flops_of(const std::vector<kernels::OperationFigures>& operations) {
  double flops = 0;
  for (const auto& operation : operations) flops += operation.flops;
  return flops;
}

BOOST_AUTO_TEST_CASE(steps_under_a_profile_have_the_bits_of_steps_without) {
  comm::CpuCommunicator& world = test::world();
  for (const char* const name : {"gpt-cpu", "resnet-cpu"}) {
    BOOST_TEST_CONTEXT(name) {
      const auto plain = kernels::make_cpu_backend(), profiled = kernels::make_cpu_backend();
      kernels::Profile profile;
      const kernels::Profiler profiler(*profiled, profile);
      train::WorkloadRun without(train::workload_named(name), world, *plain);
      train::WorkloadRun with(train::workload_named(name), world, *profiled);
      for (int step = 0; step < 2; ++step) without.step(), with.step();
      const auto a = without.replicas().params(), b = with.replicas().params();
      BOOST_TEST_REQUIRE(a.size() == b.size());
      for (std::size_t p = 0; p < a.size(); ++p) {
        BOOST_TEST(std::memcmp(a[p]->value.raw(), b[p]->value.raw(), a[p]->value.bytes()) == 0, a[p]->name);
      }
      BOOST_TEST(!profile.operations().empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gpt_does_six_operations_per_weight_and_token_besides_its_attention) {
  comm::CpuCommunicator& world = test::world();
  const auto plain = kernels::make_cpu_backend();
  kernels::Profile profile;
  const kernels::Profiler profiler(*plain, profile);
  train::WorkloadRun run(train::workload_named("gpt-cpu"), world, *plain);
  run.step();
  double weights = 0;  // matrices but for the positions, which are added; the tied embedding is the head
  for (const Param* const param : run.replicas().params()) {
    if (param->value.shape().rank() == 2 && param->name.find("wpe") == std::string::npos)
      weights += static_cast<double>(param->value.numel());
  }
  const models::Gpt::Options& model = *run.config().model.options_of<models::Gpt>();
  const double samples = static_cast<double>(run.config().train.global_batch) / world.size();
  const auto tokens = samples * static_cast<double>(model.context);
  const double attention = 6 * tokens * static_cast<double>(model.context * model.channels * model.layers);
  BOOST_TEST(flops_of(profile.operations()) == 6 * weights * tokens + attention,
             boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
