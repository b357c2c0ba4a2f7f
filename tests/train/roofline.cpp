// The roofline of a step: its arithmetic is the model's, its bytes are those that kernels move.
#include "train/roofline.h"

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "kernels/profile.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/norm.h"
#include "lockstep/optim/gradient_norm.h"
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
  gpu->fill(gpu->empty({64, 32}), 0);
  BOOST_TEST(counted.operations()[0].bytes == 64 * 32 * 4);
  BOOST_TEST(counted.operations()[0].launches == 1);
  counted.clear();
  const auto backward_of = [&](std::int64_t width) {
    const Shape matrix{64, width}, parameter{width};
    counted.clear();
    gpu->run(ops::LayerNormBackward{.dy = gpu->empty(matrix),
                                    .x = gpu->empty(matrix),
                                    .weight = gpu->empty(parameter),
                                    .mean = gpu->empty({64}),
                                    .inv_std = gpu->empty({64}),
                                    .residual_grad = {},
                                    .dx = gpu->empty(matrix),
                                    .dweight = gpu->empty(parameter),
                                    .dbias = gpu->empty(parameter)});
    return counted.operations()[0];
  };
  const double matrix_bytes = 64 * 4;
  BOOST_TEST(backward_of(32).launches == 2);
  BOOST_TEST(backward_of(32).bytes / matrix_bytes / 32 == 3.2, boost::test_tools::tolerance(0.1));
  BOOST_TEST(backward_of(33).launches == 3);  // no packs: dy and x are read twice
  BOOST_TEST(backward_of(33).bytes / matrix_bytes / 33 == 5.2, boost::test_tools::tolerance(0.1));
}

double launches_of(const train::StepRoofline& step, const std::string& name) {
  double launches = 0;
  for (const kernels::RooflineFigures& operation : step.operations) {
    if (operation.name == name) launches += static_cast<double>(operation.launches);
  }
  return launches;
}

BOOST_AUTO_TEST_CASE(an_optimizers_step_rounds_the_weights_of_the_next_passes) {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    const train::StepRoofline step = train::roofline_of(train::workload_named("gpt-cpu"), DType::bfloat16,
                                                        {"optimizer.name=" + optimizer});
    BOOST_TEST(launches_of(step, "cast") == 1, optimizer);  // the loss
  }
}

BOOST_AUTO_TEST_CASE(the_loss_of_a_model_s_result_reads_the_logits_once) {
  const train::StepRoofline step = train::roofline_of(train::workload_named("gpt-cpu"), DType::bfloat16);
  BOOST_TEST(launches_of(step, "cross_entropy_in_place") == 3);
  BOOST_TEST(launches_of(step, "cross_entropy") + launches_of(step, "cross_entropy_backward") == 0);
}

BOOST_AUTO_TEST_CASE(a_gradient_norm_is_one_launch) {
  kernels::Roofline counted;
  const auto gpu = kernels::make_meta_backend(counted);
  Param a, b;
  for (Param* const param : {&a, &b}) param->value = param->gradient = gpu->empty({5000, 3});
  ModelState model;
  model.params = {&a, &b};
  LocalGradients gradients(model, *gpu);
  optim::GradientNorm norm(gradients);
  counted.clear();
  norm.launch();
  BOOST_REQUIRE(counted.operations().size() == 1);
  BOOST_TEST(counted.operations()[0].launches == 1);
  BOOST_TEST(counted.operations()[0].bytes >= 2 * 5000 * 3 * 4);
}

BOOST_AUTO_TEST_CASE(a_weight_is_rounded_again_after_an_operation_wrote_it_and_only_then) {
  kernels::Roofline counted;
  const auto gpu = kernels::make_meta_backend(counted);
  Tape tape(*gpu);
  Param param;
  param.name = "weight";
  param.value = gpu->empty({8, 4});
  const auto rounds = [&] {
    counted.clear();
    tape.begin({.record = false, .compute = DType::bfloat16});
    (void)tape.weight(param);
    return counted.operations().size() == 1 && counted.operations()[0].name == "cast";
  };
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  gpu->fill(gpu->empty({8, 4}), 1);  // another tensor
  BOOST_TEST(!rounds());
  gpu->fill(param.value.rows(7, 8), 1);
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  gpu->copy(gpu->empty({8, 4}), param.value);
  BOOST_TEST(rounds());
  gpu->run(ops::scale(param.value, 2, param.value));
  BOOST_TEST(rounds());
  param.value = gpu->empty({8, 4});
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  Param middle;  // a part of its memory
  middle.value = param.value.rows(2, 4);
  tape.begin({.record = false, .compute = DType::bfloat16});
  (void)tape.weight(middle);
  gpu->fill(param.value.rows(6, 8), 1);
  BOOST_TEST(rounds());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
