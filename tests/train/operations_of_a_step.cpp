// What a step asks a device for: no pass over memory more than it needs.
#include <boost/test/unit_test.hpp>
#include <map>

#include "lockstep/autograd/tape.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/optim/gradient_norm.h"
#include "support/fake_device.h"
#include "support/world.h"
#include "train/run/benchmark.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(operations_of_a_step)

/// The operations that a device was asked for since the last look: how often each.
class Asked final : kernels::Observer {
 public:
  Asked() { device->observe(this); }
  std::map<std::string, int> look() { return std::exchange(calls_, {}); }

  const std::unique_ptr<kernels::Backend> device = make_fake_device();

 private:
  void begin() override {}
  void end(std::string_view label, const ops::Cost&, bool) override { ++calls_[std::string(label)]; }

  std::map<std::string, int> calls_;
};

std::map<std::string, int> steady_step(const std::vector<std::string>& overrides) {
  Asked asked;
  const auto transport = make_fake_transport(test::world(), *asked.device);
  train::WorkloadRun run(train::workload_named("gpt-cpu"), *transport, *asked.device,
                         {.compute = DType::bfloat16}, 1, overrides);
  for (int until_steady = 0; until_steady < 2; ++until_steady) run.step();
  asked.look();
  run.step();
  return asked.look();
}

BOOST_AUTO_TEST_CASE(an_optimizers_step_rounds_the_weights_of_the_next_passes) {
  constexpr int of_the_loss = 3;  // 18 matrices would be as many more
  for (const std::string optimizer : {"adamw", "sgd"})
    BOOST_TEST(steady_step({"optimizer.name=" + optimizer})["copy"] == of_the_loss, optimizer);
}

BOOST_AUTO_TEST_CASE(the_loss_of_a_model_s_result_reads_the_logits_once) {
  auto step = steady_step({});
  BOOST_TEST(step["cross_entropy_in_place"] == 1);
  BOOST_TEST(step["cross_entropy"] + step["cross_entropy_backward"] == 0);
}

BOOST_AUTO_TEST_CASE(a_gradient_norm_is_one_operation) {
  Asked asked;
  Param a, b;
  for (Param* const param : {&a, &b}) {
    param->value = param->gradient = asked.device->empty({5000, 3});
    asked.device->fill(param->gradient, 1);
  }
  ModelState model;
  model.params = {&a, &b};
  LocalGradients gradients(model, *asked.device);
  optim::GradientNorm norm(gradients);
  asked.look();
  norm.launch();
  const auto operations = asked.look();
  BOOST_TEST_REQUIRE(operations.size() == 1U);
  BOOST_TEST(operations.begin()->second == 1);
}

BOOST_AUTO_TEST_CASE(a_weight_is_rounded_again_after_an_operation_wrote_it_and_only_then) {
  Asked asked;
  kernels::Backend& device = *asked.device;
  Tape tape(device);
  Param param;
  param.name = "weight";
  param.value = device.empty({8, 4});
  device.fill(param.value, 1);
  const auto rounds = [&] {
    asked.look();
    tape.begin({.record = false, .compute = DType::bfloat16});
    (void)tape.weight(param);
    return asked.look()["copy"] == 1;
  };
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  device.fill(device.empty({8, 4}), 1);  // another tensor
  BOOST_TEST(!rounds());
  device.fill(param.value.rows(7, 8), 1);
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  device.copy(device.empty({8, 4}), param.value);
  BOOST_TEST(rounds());
  device.run(ops::scale(param.value, 2, param.value));
  BOOST_TEST(rounds());
  param.value = device.empty({8, 4});
  BOOST_TEST(rounds());
  BOOST_TEST(!rounds());
  Param middle;  // a part of its memory
  middle.value = param.value.rows(2, 4);
  tape.begin({.record = false, .compute = DType::bfloat16});
  (void)tape.weight(middle);
  device.fill(param.value.rows(6, 8), 1);
  BOOST_TEST(rounds());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
