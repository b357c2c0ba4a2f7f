// The roofline of a step: its arithmetic is the model's, its bytes are those that kernels move.
#include "train/roofline.h"

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "kernels/profile.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/norm.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(roofline)

using Kind = kernels::RooflineFigures::Kind;

BOOST_AUTO_TEST_CASE(the_arithmetic_of_a_step_is_that_of_a_step_which_runs) {
  comm::CpuCommunicator& world = test::world();
  const auto cpu = kernels::make_cpu_backend();
  kernels::Profile profile;
  double flops = 0;
  {
    train::WorkloadRun run(train::workload_named("gpt-cpu"), world, *cpu);
    run.step();
    run.step();
    const kernels::Profiler profiler(*cpu, profile);
    run.step();
    for (const auto& operation : profile.operations()) flops += operation.flops;
  }
  const train::StepRoofline step = train::roofline_of(train::workload_named("gpt-cpu"), DType::float32);
  BOOST_TEST(step.total().flops == flops, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(step.total(Kind::attention).flops > 0);
  BOOST_TEST(step.total(Kind::other).flops == 0);
}

BOOST_AUTO_TEST_CASE(the_least_time_of_a_call_is_the_larger_of_its_bounds_and_its_launches) {
  kernels::Roofline counted;
  counted.add("moves", 2, 3.0e9, 62e9);        // 1 ms of memory, 0.1 of arithmetic
  counted.add("computes", 1, 3.0e9, 1.24e12);  // 2 ms of arithmetic
  const auto found = counted.operations();
  BOOST_TEST(found[0].name == "computes");
  BOOST_TEST(found[0].ms == 2.002, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found[1].ms == 1.004, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(a_pass_over_an_operand_is_counted_each_time) {
  kernels::Roofline counted;
  const auto gpu = kernels::make_meta_backend(counted);
  const Tensor x = gpu->empty({64, 32}), row = gpu->empty({32}), column = gpu->empty({64});
  gpu->fill(x, 0);
  BOOST_TEST(counted.operations()[0].bytes == 64 * 32 * 4);
  BOOST_TEST(counted.operations()[0].launches == 1);
  counted.clear();
  gpu->run(ops::LayerNormBackward{.dy = x,
                                  .x = gpu->empty({64, 32}),
                                  .weight = row,
                                  .mean = column,
                                  .inv_std = gpu->empty({64}),
                                  .residual_grad = {},
                                  .dx = gpu->empty({64, 32}),
                                  .dweight = gpu->empty({32}),
                                  .dbias = gpu->empty({32})});
  const auto found = counted.operations();
  BOOST_TEST(found[0].launches == 3);
  BOOST_TEST(found[0].bytes > 5 * 64 * 32 * 4);  // dy and x twice, dx once
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
