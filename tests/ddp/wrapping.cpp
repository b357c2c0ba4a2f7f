// Orders of what a program makes and does: an Ema before the DataParallel, steps while EMA weights are
// swapped in, values of an earlier pass. Each is right, or the same error on every rank.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <optional>

#include "ddp/training.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(wrapping, *ranks(1, 2, 3, 4))

/// A model whose weights differ between ranks until it is wrapped, with EMA weights made before or after.
struct Run {
  explicit Run(bool ema_first, const ddp::Options& options = {}) {
    if (ema_first) make_ema();
    replicas.emplace(net.state(), world(), *backend, options);
    if (!ema_first) make_ema();
    adamw.emplace(*replicas, optim::AdamWOptions{.lr = 0.01});
  }
  void make_ema() { ema.emplace(net.state(), *backend, std::vector<optim::EmaProfile>{0.5, 0.9}); }
  void gradients(std::uint64_t step) {
    replicas->step(toy_batch(step, *replicas),
                   [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
  }
  void step(std::uint64_t step) {
    gradients(step);
    adamw->step();
    ema->update();
  }

  Net net{static_cast<std::uint64_t>(world().rank()) + 1};
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  std::optional<optim::Ema> ema;
  std::optional<ddp::DataParallel> replicas;
  std::optional<optim::AdamW> adamw;
};

void check_same_averages(const Run& a, const Run& b) {
  const auto found = a.ema->tensors(), wanted = b.ema->tensors();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    BOOST_TEST(same_bits(elements(found[i].tensor), elements(wanted[i].tensor)), wanted[i].name);
}

BOOST_AUTO_TEST_CASE(an_ema_made_before_wrapping_is_the_ema_made_after) {
  Run before(true), after(false);
  check_same_averages(before, after);
  for (std::uint64_t step = 0; step < 3; ++step) {
    before.step(step);
    after.step(step);
  }
  check_same_averages(before, after);
  before.replicas->check_replicas();
}

BOOST_AUTO_TEST_CASE(an_ema_that_some_ranks_lack_is_named_when_the_model_is_wrapped) {
  if (world().size() == 1) return;
  Net net;
  const auto backend = kernels::make_cpu_backend();
  std::optional<optim::Ema> ema;
  if (world().rank() == 1) ema.emplace(net.state(), *backend, std::vector<optim::EmaProfile>{0.5});
  const std::string text =
      same_error(ExitCode::usage, [&] { ddp::DataParallel(net.state(), world(), *backend); });
  BOOST_TEST(contains(text, "ema/0.5/in.weight"), text);
  BOOST_TEST(contains(text, world().size() == 2 ? "on rank 1;" : "on rank 1"), text);
}

BOOST_AUTO_TEST_CASE(an_ema_that_has_ended_is_forgotten) {
  Run run(true);
  run.ema.reset();
  run.replicas->check_replicas();
  run.make_ema();
  run.replicas->check_replicas();
}

BOOST_AUTO_TEST_CASE(ema_weights_and_optimizer_state_that_differ_are_named_with_their_ranks) {
  if (world().size() == 1) return;
  Run run(false);
  run.step(0);
  const auto flip = [&](const Tensor& tensor) {
    if (world().rank() == 1) *tensor.data<float>() += 1;
  };
  const auto error = [&] { return same_error(ExitCode::training, [&] { run.replicas->check_replicas(); }); };
  flip(run.ema->tensor("0.9", "tied.weight"));
  BOOST_TEST(contains(error(), "the replicas differ: ema/0.9/tied.weight on rank 1;"));
  run.make_ema();
  run.replicas->check_replicas();
  flip(run.adamw->held_slots()[0].entries[2].tensor);
  BOOST_TEST(contains(error(), "the replicas differ: optimizer/exp_avg/tied.weight on rank 1;"));
}

BOOST_AUTO_TEST_CASE(an_optimizer_that_some_ranks_lack_is_an_error_of_a_comparison) {
  if (world().size() == 1) return;
  Run run(false);
  if (world().rank() == 1) run.adamw.reset();
  const std::string text = same_error(ExitCode::training, [&] { run.replicas->check_replicas(); });
  BOOST_TEST(contains(text, "the list of tensors"), text);
}

BOOST_AUTO_TEST_CASE(no_step_is_made_while_ema_weights_are_swapped_in) {
  Run run(false), undisturbed(false);
  for (Run* const each : {&run, &undisturbed}) {
    each->step(0);
    each->gradients(1);
  }
  optim::Ema other(run.net.state(), *run.backend, {0.5});
  {
    const auto evaluation = run.ema->swap_in("0.9");
    BOOST_CHECK_EXCEPTION(run.adamw->step(), UsageError, mentions("EMA weights are swapped in"));
    const std::string text = same_error(ExitCode::usage, [&] { run.gradients(2); });
    BOOST_TEST(contains(text, "EMA weights are swapped in"), text);
    same_error(ExitCode::usage, [&] { ddp::DataParallel(run.net.state(), world(), *run.backend); });
    BOOST_CHECK_THROW(optim::Ema(run.net.state(), *run.backend, {0.5}), UsageError);
    BOOST_CHECK_THROW(other.update(), UsageError);
    BOOST_CHECK_THROW(static_cast<void>(other.swap_in("0.5")), UsageError);
  }
  for (Run* const each : {&run, &undisturbed}) {
    each->gradients(1);
    each->adamw->step();
    each->ema->update();
  }
  check_same_averages(run, undisturbed);
  check_same_state(run.net.state(), undisturbed.net.state());
}

BOOST_AUTO_TEST_CASE(ema_weights_swapped_in_on_one_rank_are_an_error_of_all) {
  Run run(false);
  run.step(0);
  std::unique_ptr<optim::Ema::SwappedIn> evaluation;
  if (world().rank() == world().size() - 1)
    evaluation.reset(new optim::Ema::SwappedIn(run.ema->swap_in("0.9")));
  same_error(ExitCode::usage, [&] { run.gradients(1); });
  evaluation.reset();
  run.step(1);
}

BOOST_AUTO_TEST_CASE(an_optimizer_whose_source_has_been_destroyed_says_so) {
  Run run(false);
  run.step(0);
  run.replicas.reset();
  const auto refused = mentions("was destroyed before");
  BOOST_CHECK_EXCEPTION(run.adamw->step(), UsageError, refused);
  BOOST_CHECK_EXCEPTION(static_cast<void>(run.adamw->slots()), UsageError, refused);
  BOOST_CHECK_EXCEPTION(static_cast<void>(run.adamw->run()), UsageError, refused);
}

BOOST_AUTO_TEST_CASE(a_value_kept_from_the_step_before_is_an_error_of_all_ranks) {
  Run run(false);
  std::optional<Var> kept;
  const auto step = [&](std::uint64_t number, bool carries_over) {
    run.replicas->step(toy_batch(number, *run.replicas), [&](Tape& tape, const ToyShard& shard) {
      Var weight = tape.parameter(run.net["in.weight"]);
      if (kept) weight = weight + (carries_over ? tape.constant(kept->value()) : *kept);
      kept = relu(weight);
      return run.net.loss(tape, shard.x, shard.y, weight);
    });
  };
  step(0, true);
  const std::string text = same_error(ExitCode::usage, [&] { step(1, false); });
  BOOST_TEST(contains(text, "a value of an earlier pass"), text);
  BOOST_TEST(contains(text, "tape.constant(kept.value())"), text);
  step(1, true);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
