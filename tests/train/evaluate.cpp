#include "lockstep/train/evaluate.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/models/mlp.h"
#include "support/pairs.h"
#include "support/world.h"

#include "lockstep/tasks/built_in.h"
#include "train/infer/predict.h"
#include "train/run/evaluations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(evaluate, *ranks(1, 2, 3, 4))

/// Made-up samples of 4 numbers and 3 classes. 150 is not a multiple of any chunk or number of ranks.
class MadeUp final : public Pairs {
 public:
  explicit MadeUp(std::int64_t samples = 150) : Pairs("made up", samples, {4, 1, 1}, 3) {}

 private:
  void read_pairs(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override {
    const Random random({3, purpose_of("made up"), 0, 0});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (std::size_t k = 0; k < 4; ++k) {
        x.data<float>()[i * 4 + k] = random.normal(static_cast<std::uint64_t>(samples[i]) * 4 + k);
      }
      y.data<std::int64_t>()[i] = samples[i] % 3;
    }
  }
};

BOOST_AUTO_TEST_CASE(logits_without_probabilities_have_no_label) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{nan, 0, 1, inf, 0, inf, -inf, -inf, 0, 3, -inf, 2};
  const Tensor rows = Tensor::empty({6, 2});
  std::ranges::copy(logits, rows.data<float>());
  const auto [labels, probabilities] = train::labels_and_probabilities(rows, OutputMeaning::classes);
  const std::span<const std::int64_t> found(labels.data<std::int64_t>(), 6);
  BOOST_TEST(found == (std::vector<std::int64_t>{-1, -1, -1, -1, 1, 1}), boost::test_tools::per_element());
  for (int i = 0; i < 12; ++i) BOOST_TEST(std::isnan(probabilities.data<float>()[i]) == (i < 8));
  BOOST_TEST(probabilities.data<float>()[10] == 0);
  const auto binary = train::labels_and_probabilities(rows, OutputMeaning::binary);
  for (int i = 0; i < 12; ++i)
    BOOST_TEST((binary.first.data<std::int64_t>()[i] == -1) ==
               !std::isfinite(logits[static_cast<std::size_t>(i)]));
}

BOOST_AUTO_TEST_CASE(every_sample_counts_once_at_any_number_of_ranks) {
  const MadeUp dataset;
  const auto backend = kernels::make_cpu_backend();
  models::Mlp model({.sizes = {4, 8, 3}}, 5);
  Tape tape(*backend);
  tasks::Classification task({});
  task.check(model, dataset);
  const train::Evaluator together{.model = model, .task = task, .tape = tape, .world = world()};
  const train::EvaluationResult shared = train::evaluate(together, dataset);
  BOOST_TEST(shared.samples == 150);

  const auto alone = comm::make_self_communicator();
  const train::EvaluationResult serial =
      train::evaluate({.model = model, .task = task, .tape = tape, .world = *alone}, dataset);
  BOOST_TEST((shared.metrics == serial.metrics));  // the same bits
  BOOST_TEST(std::isfinite(serial.loss()));
}

struct Fixture {
  const MadeUp dataset{600};  // several batches a rank
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  models::Mlp model{{.sizes = {4, 8, 3}}, 5};
  Tape tape{*backend};
  optim::Ema ema{model, {0.5}};
  train::WeightsInUse weights{&ema};
  tasks::Classification task{{}};

  train::Evaluations evaluations(std::int64_t every, std::int64_t last_step) {
    task.check(model, dataset);
    return {{.evaluator = {.model = model, .task = task, .tape = tape, .world = world()},
             .weights = weights,
             .dataset = &dataset},
            every,
            last_step};
  }
};

BOOST_FIXTURE_TEST_CASE(evaluations_are_due_at_each_interval_and_after_the_last_step, Fixture) {
  const train::Evaluations some = evaluations(4, 10), last = evaluations(0, 10);
  for (std::int64_t step = 0; step <= 10; ++step) {
    BOOST_TEST(some.due_after(step) == (step == 4 || step == 8 || step == 10));
    BOOST_TEST(some.left_after(step) == (step < 4) + (step < 8) + (step < 10));
    BOOST_TEST(last.due_after(step) == (step == 10));
  }
}

BOOST_FIXTURE_TEST_CASE(the_best_checkpoint_is_judged_by_a_metric_of_the_run, Fixture) {
  const train::Evaluations all = evaluations(0, 1);
  std::vector<std::string> names;
  for (const Metric& metric : all.metrics()) names.push_back(metric.name);
  BOOST_TEST(names == (std::vector<std::string>{"eval_loss", "eval_accuracy", "eval_ema_0.5_loss",
                                                "eval_ema_0.5_accuracy"}),
             boost::test_tools::per_element());
  BOOST_CHECK_NO_THROW(all.check_keep_best(""));
  BOOST_CHECK_NO_THROW(all.check_keep_best("eval_ema_0.5_loss"));
  BOOST_CHECK_THROW(all.check_keep_best("eval_ema_0.9_loss"), UsageError);
}

BOOST_FIXTURE_TEST_CASE(what_happens_between_batches_of_ema_weights_sees_the_models_own_weights, Fixture) {
  float& own = model.state().params[0]->value.data<float>()[0];
  own = 42;  // the EMA weights keep the first value
  const auto present = [&] { return model.state().params[0]->value.data<float>()[0]; };
  train::Evaluations both = evaluations(0, 1);
  int rounds = 0, rounds_of_ema = 0;
  const auto found = both.run({.requests = [] { return std::uint64_t{0}; },
                               .act =
                                   [&](std::uint64_t, double fraction) {
                                     ++rounds;
                                     rounds_of_ema += present() != 42;
                                     BOOST_TEST((present() != 42) == (fraction > 0.5));
                                     weights.with_own([&] { BOOST_TEST(present() == 42); });
                                     return true;
                                   }});
  BOOST_TEST(found->metrics.size() == 4U);
  BOOST_TEST(2 * rounds_of_ema == rounds);
  BOOST_TEST(present() == 42);
}

BOOST_FIXTURE_TEST_CASE(a_stop_ends_an_evaluation_without_metrics_and_leaves_the_models_own_weights,
                        Fixture) {
  model.state().params[0]->value.data<float>()[0] = 42;
  const auto found =
      evaluations(0, 1).run({.requests = [] { return std::uint64_t{0}; },
                             .act = [](std::uint64_t, double fraction) { return fraction <= 0.5; }});
  BOOST_TEST(!found);
  BOOST_TEST(model.state().params[0]->value.data<float>()[0] == 42);
}

BOOST_FIXTURE_TEST_CASE(a_sample_tried_first_finds_what_does_not_fit_and_changes_no_evaluation, Fixture) {
  train::Evaluations some = evaluations(0, 1);
  const train::EvaluationWatch watch{.requests = [] { return std::uint64_t{0}; },
                                     .act = [](std::uint64_t, double) { return true; }};
  const auto before = some.run(watch);
  const auto sample = [](std::int64_t width) {
    return Batch(0, {{"x", Tensor::zeros({1, width, 1, 1})}, {"y", Tensor::zeros({1}, DType::int64)}});
  };
  BOOST_CHECK_THROW(some.try_on(sample(5), false), DataError);
  BOOST_CHECK_NO_THROW(some.try_on(sample(4), false));
  BOOST_TEST((some.run(watch)->metrics == before->metrics));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
