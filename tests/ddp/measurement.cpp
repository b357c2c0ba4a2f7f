// What an optimizer has measured in the step that makes its gradients: the norm that it would find after it.
#include <limits>

#include "ddp/momentum.h"
#include "ddp/wide.h"
#include "lockstep/comm/agreement.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(measurement, *ranks(1, 2, 3, 4))

constexpr optim::StepOptions clipped{.lr = {}, .clip = 0.5};

/// WideRun::step, with the norm measured on the way.
double measured_step(WideRun& run, std::uint64_t number) {
  run.replicas.step(
      toy_batch(number, run.replicas),
      [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
        return run.model.loss(tape, shard, piece);
      },
      run.optimizer->measurement_for(clipped));
  return run.optimizer->step(clipped).gradient_norm;
}

BOOST_AUTO_TEST_CASE(it_has_the_bits_of_what_is_measured_after_the_step) {
  for (const bool sharded : {false, true}) {
    WideRun after(wide_options(sharded)), within(wide_options(sharded));
    for (std::uint64_t step = 0; step < 5; ++step)  // odd ones leave a parameter unused
      BOOST_TEST(measured_step(within, step) == after.step(step));
    check_same(within, after);
  }
}

BOOST_AUTO_TEST_CASE(it_is_asked_for_where_a_norm_is_needed) {
  WideRun run(wide_options(false));
  BOOST_TEST(!run.optimizer->measurement_for({}));
  BOOST_TEST(run.optimizer->measurement_for({.lr = {}, .clip = 1}));
  BOOST_TEST(run.optimizer->measurement_for({.lr = {}, .clip = 0, .measure_norm = true}));
}

BOOST_AUTO_TEST_CASE(it_is_of_its_own_step_alone) {
  WideRun after(wide_options(true)), now_and_then(wide_options(true));
  for (std::uint64_t step = 0; step < 6; ++step) {
    const double wanted = after.step(step);
    BOOST_TEST((step % 3 == 0 ? measured_step(now_and_then, step) : now_and_then.step(step)) == wanted);
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_left_of_it_by_a_step_that_failed) {
  for (const bool sharded : {false, true}) {
    WideRun failing(wide_options(sharded)), steady(wide_options(sharded));
    for (std::uint64_t step = 0; step < 4; ++step) {
      same_error(ExitCode::data, [&] {
        failing.replicas.step(
            toy_batch(40, failing.replicas),
            [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
              if (shard.index == 3) throw DataError("shard 3 is broken");
              return failing.model.loss(tape, shard, piece);
            },
            failing.optimizer->measurement_for(clipped));
      });
      for (const Param& param : failing.model.params) BOOST_TEST(!param.gradient, param.name);
      BOOST_TEST(failing.step(step) == steady.step(step));
    }
  }
}

/// Asks as another does, but on the last rank the device takes nothing any more.
class RefusedOnOneRank final : public Measurement {
 public:
  explicit RefusedOnOneRank(Measurement& measured) : measured_(measured) {}
  kernels::Transfer launch() override {
    const kernels::Transfer asked = measured_.launch();
    if (world().rank() + 1 == world().size()) throw FailureError("the device takes no more work");
    return asked;
  }

 private:
  Measurement& measured_;
};

BOOST_AUTO_TEST_CASE(what_one_rank_cannot_ask_for_is_the_same_error_on_all_and_the_next_step_works) {
  for (const bool sharded : {false, true}) {
    WideRun failing(wide_options(sharded)), steady(wide_options(sharded));
    for (std::uint64_t step = 0; step < 3; ++step) {
      RefusedOnOneRank refused(*failing.optimizer->measurement_for(clipped));
      const std::string text = same_error(ExitCode::failure, [&] {
        failing.replicas.step(
            toy_batch(40, failing.replicas),
            [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
              return failing.model.loss(tape, shard, piece);
            },
            &refused);
      });
      BOOST_TEST(contains(text, "the device takes no more work"), text);
      for (const Param& param : failing.model.params) BOOST_TEST(!param.gradient, param.name);
      BOOST_TEST(failing.step(step) == steady.step(step));
    }
    check_same(failing, steady);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_cannot_measure_its_part_leaves_no_other_waiting_for_it) {
  WideRun run(wide_options(true));
  run.step(0);
  if (world().rank() + 1 == world().size())
    for (Param& param : run.model.params) param.gradient = Tensor::zeros({1});
  const std::string text = same_error(ExitCode::usage, [&] {
    comm::run_on_all(world(), [&] { run.optimizer->measurement_for(clipped)->launch(); });
  });
  BOOST_TEST(contains(text, "cannot be viewed as"), text);
}

BOOST_AUTO_TEST_CASE(a_gradient_that_is_not_finite_is_named_before_a_parameter_is_touched) {
  for (const bool sharded : {false, true}) {
    WideRun run(wide_options(sharded));
    measured_step(run, 0);
    const auto before = run.model.values();
    run.replicas.step(
        toy_batch(1, run.replicas),
        [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
          Loss loss = run.model.loss(tape, shard, piece);
          if (shard.index == 3) loss.sum = scale(loss.sum, std::numeric_limits<float>::infinity());
          return loss;
        },
        run.optimizer->measurement_for(clipped));
    const std::string text = same_error(ExitCode::training, [&] { run.optimizer->step(clipped); });
    BOOST_TEST(contains(text, "the gradient of 'in.bias' is not finite (elements 0 to 130)"), text);
    BOOST_TEST((run.model.values() == before));
  }
}

/// A hook may have left something there that is dropped with the parameter.
BOOST_AUTO_TEST_CASE(a_parameter_that_nobody_used_is_no_part_of_it) {
  ToyRun run({.shards = 6, .unused = ddp::Unused::allow, .hook = std::make_shared<Momentum>()});
  optim::Sgd sgd(run.replicas, {.lr = 0});
  for (std::uint64_t step = 0; step < 4; ++step) run.step(step);
  run.replicas.step(
      toy_batch(4, run.replicas),
      [&](Tape& tape, const ToyShard& shard) { return shallow(run.net, tape, shard); },
      sgd.measurement_for(clipped));
  BOOST_TEST(!run.net["tied.weight"].gradient);
  BOOST_TEST(sgd.step(clipped).gradient_norm == optim::gradient_norm(run.replicas));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
