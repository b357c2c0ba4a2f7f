// Tasks: the losses and metrics of the built-in ones, and what is wrong about one of a program.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tasks/built_in.h"
#include "lockstep/tasks/registry.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(tasks)

using lockstep::tasks::Binary;
using lockstep::tasks::Classification;
using lockstep::tasks::Language;
using lockstep::tasks::Regression;

/// Its output is a field of the batch.
struct Told final : Model {
  explicit Told(std::int64_t classes = 0) : Model(1), of(classes) {}
  std::int64_t classes() const override { return of; }
  std::string output_lengths() const override { return "y_lengths"; }
  Var forward(Tape& tape, const Batch& batch) override { return tape.batch(batch["output"]); }
  std::int64_t of;
};

struct Fields final : data::Dataset {
  explicit Fields(std::vector<data::Field> fields) : all(std::move(fields)) {}
  std::int64_t size() const override { return 1; }
  const std::vector<data::Field>& fields() const override { return all; }
  std::string name() const override { return "made.h5"; }
  void read(std::span<const std::int64_t>, std::span<const Tensor>) const override {}
  std::vector<data::Field> all;
};
Fields integers(std::int64_t classes = 0) {
  return Fields({{.name = "y", .dtype = DType::int64, .shape = {}, .classes = classes}});
}
Fields floats() { return Fields({{.name = "y", .shape = {1}}}); }

Tensor tensor(Shape shape, std::vector<float> values) {
  const Tensor made = Tensor::empty(shape);
  std::copy(values.begin(), values.end(), made.data<float>());
  return made;
}
Tensor labels(std::vector<std::int64_t> values) {
  const Tensor made = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::int64);
  std::copy(values.begin(), values.end(), made.data<std::int64_t>());
  return made;
}

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};

  /// The value of a metric over these batches, a chunk each.
  double metric(Task& task, Model& model, const std::string& name, const std::vector<Batch>& chunks) {
    std::vector<Metric> metrics{{.name = "loss"}};
    for (Metric& metric : task.metrics()) metrics.push_back(std::move(metric));
    std::vector<double> sums;
    for (const Batch& batch : chunks) {
      tape.begin({.training = false, .record = false});
      Evaluation evaluation(metrics, task(tape, model, batch));
      task.evaluate(evaluation, batch, model.take_output());
      sums.resize(evaluation.sums().size());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += evaluation.sums()[i];
    }
    std::span<const double> left = sums;
    for (const Metric& metric : metrics) {
      const auto own = left.first(static_cast<std::size_t>(metric.sums));
      if (metric.name == name) return metric.value(own);
      left = left.subspan(own.size());
    }
    throw UsageError("no metric {}", name);
  }
};

BOOST_FIXTURE_TEST_SUITE(tasks, Fixture)

BOOST_AUTO_TEST_CASE(classification_counts_the_best_and_the_five_best_classes_and_each_class) {
  Classification task({.per_class = true});
  Told model(7);
  task.check(model, integers(7));
  // Targets have rank 1, 5, 6 among the logits; of equal logits the first counts as the larger.
  const Tensor logits = tensor({4, 7}, {9, 8, 7, 6, 5, 4, 3,  //
                                        9, 8, 7, 6, 5, 4, 3,  //
                                        9, 8, 7, 6, 5, 4, 3,  //
                                        1, 1, 1, 1, 1, 1, 1});
  const std::vector<Batch> batches{Batch(0, {{"output", logits}, {"y", labels({0, 4, 5, 5})}})};
  BOOST_TEST(metric(task, model, "accuracy", batches) == 0.25);
  BOOST_TEST(metric(task, model, "accuracy_top5", batches) == 0.5);
  BOOST_TEST(metric(task, model, "accuracy_class_0", batches) == 1);
  BOOST_TEST(metric(task, model, "accuracy_class_5", batches) == 0);
  BOOST_TEST(std::isnan(metric(task, model, "accuracy_class_6", batches)));  // no sample
  Classification few({});
  few.check(Told(5), integers(5));
  BOOST_TEST(few.metrics().size() == 1U);
  const std::vector<Batch> column{
      Batch(0, {{"output", logits}, {"y", labels({0, 4, 5, 5}).reshape({4, 1})}})};  // as h5py files have it
  BOOST_TEST(metric(task, model, "accuracy", column) == 0.25);
}

BOOST_AUTO_TEST_CASE(steps_that_do_not_exist_count_in_no_loss_and_no_metric) {
  const float nan = std::nanf("");
  const auto same = [&](Task& task, Model& model, const Batch& padded, const Batch& rows) {
    std::vector<Metric> metrics = task.metrics();
    metrics.push_back({.name = "loss"});
    for (const Metric& one : metrics) {
      const double found = metric(task, model, one.name, {padded}),
                   wanted = metric(task, model, one.name, {rows});
      BOOST_TEST((std::abs(found - wanted) <= 1e-6 || (std::isnan(found) && std::isnan(wanted))),
                 one.name << ": " << found << ", not " << wanted);  // NaN: no sample of this class
    }
  };
  const Tensor lengths = labels({1, 0, 2});
  const auto steps = [&](const Tensor& first, const Tensor& third, const Tensor& fourth, auto padding) {
    const std::int64_t width = first.numel();
    const Tensor all = Tensor::empty(width == 1 ? Shape{3, 2} : Shape{3, 2, width}, first.dtype());
    auto* const to = all.template data<decltype(padding)>();
    std::fill_n(to, all.numel(), padding);
    for (const auto& [step, from] : {std::pair(0, first), {4, third}, {5, fourth}})
      std::copy_n(from.template data<decltype(padding)>(), width, to + step * width);
    return all;
  };
  Told model(6);
  Classification classes({.per_class = true});
  classes.check(model, integers(6));
  const Tensor a = tensor({6}, {1, 2, 3, 4, 5, 6}), b = tensor({6}, {3, 1, 1, 2, 0, 1}),
               c = tensor({6}, {9, 8, 7, 6, 5, 4});
  const Tensor rows = tensor({3, 6}, {1, 2, 3, 4, 5, 6, 3, 1, 1, 2, 0, 1, 9, 8, 7, 6, 5, 4});
  same(classes, model,
       Batch(0, {{"output", steps(a, b, c, nan)},
                 {"y", steps(labels({5}), labels({0}), labels({5}), std::int64_t{77})},
                 {"y_lengths", lengths}}),
       Batch(0, {{"output", rows}, {"y", labels({5, 0, 5})}}));
  const Tensor again = tensor({3, 6}, {1, 2, 3, 4, 5, 6, 9, 8, 7, 6, 5, 4, 3, 1, 1, 2, 0, 1});
  same(classes, model, Batch(0, {{"output", again}, {"y", labels({5, -100, 0})}}),
       Batch(0, {{"output", tensor({2, 6}, {1, 2, 3, 4, 5, 6, 3, 1, 1, 2, 0, 1})}, {"y", labels({5, 0})}}));
  for (const char* const loss : {"mse", "l1", "smooth_l1"}) {
    Regression numbers({.loss = loss});
    const Tensor y = steps(b, c, a, nan), x = steps(a, b, c, nan);
    same(numbers, model, Batch(0, {{"output", x}, {"y", y}, {"y_lengths", lengths}}),
         Batch(0, {{"output", rows},
                   {"y", tensor({3, 6}, {3, 1, 1, 2, 0, 1, 9, 8, 7, 6, 5, 4, 1, 2, 3, 4, 5, 6})}}));
  }
  Binary binary({});
  same(binary, model,
       Batch(0, {{"output", steps(tensor({1}, {2}), tensor({1}, {-1}), tensor({1}, {3}), nan)},
                 {"y", steps(labels({1}), labels({1}), labels({1}), std::int64_t{55})},
                 {"y_lengths", lengths}}),
       Batch(0, {{"output", tensor({3}, {2, -1, 3})}, {"y", labels({1, 1, 1})}}));
}

BOOST_AUTO_TEST_CASE(the_smoothing_of_labels_is_for_training_only) {
  Classification task({.label_smoothing = 0.5});
  Told model(2);
  const Batch batch(0, {{"output", tensor({1, 2}, {3, 0})}, {"y", labels({0})}});
  const auto loss = [&](bool training) {
    tape.begin({.training = training, .record = false});
    return task(tape, model, batch).read().sum;
  };
  BOOST_TEST(loss(false) == std::log1p(std::exp(-3.0)), boost::test_tools::tolerance(1e-6));
  BOOST_TEST(loss(true) > 0.5);
}

BOOST_AUTO_TEST_CASE(perplexity_is_that_of_the_mean_loss) {
  Language task({});
  Told model(4);
  const std::vector<Batch> uniform{
      Batch(0, {{"output", tensor({2, 4}, {0, 0, 0, 0, 1, 1, 1, 1})}, {"y", labels({1, 3})}})};
  BOOST_TEST(metric(task, model, "perplexity", uniform) == 4, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(rmse_and_r2_are_those_of_all_samples_together) {
  Regression task({});
  Told model;
  task.check(model, floats());
  // y = 1, 2, 4 (variation 14/3), errors 1, 0, -1; [N] fits an output [N, 1].
  const std::vector<Batch> chunks{Batch(0, {{"output", tensor({2, 1}, {2, 2})}, {"y", tensor({2}, {1, 2})}}),
                                  Batch(1, {{"output", tensor({1, 1}, {3})}, {"y", tensor({1}, {4})}})};
  BOOST_TEST(metric(task, model, "loss", chunks) == 2.0 / 3, boost::test_tools::tolerance(1e-7));
  BOOST_TEST(metric(task, model, "rmse", chunks) == std::sqrt(2.0 / 3), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(metric(task, model, "r2", chunks) == 1 - 2 / (14.0 / 3), boost::test_tools::tolerance(1e-12));
  const std::vector<Batch> constant{Batch(0, {{"output", tensor({1, 1}, {5})}, {"y", tensor({1}, {5})}})};
  BOOST_TEST(metric(task, model, "r2", constant) == 1);
}

BOOST_AUTO_TEST_CASE(the_loss_of_a_regression_is_chosen) {
  Told model;
  const std::vector<Batch> batch{
      Batch(0, {{"output", tensor({2, 1}, {3, 0.5f})}, {"y", tensor({2, 1}, {0, 0})}})};
  const auto loss = [&](const Regression::Options& options) {
    Regression task(options);
    return metric(task, model, "loss", batch);
  };
  BOOST_TEST(loss({.loss = "mse"}) == (9 + 0.25) / 2);
  BOOST_TEST(loss({.loss = "l1"}) == 3.5 / 2);
  BOOST_TEST(loss({.loss = "smooth_l1"}) == (2.5 + 0.125) / 2);
  BOOST_TEST(loss({.loss = "smooth_l1", .beta = 2}) == (2 + 0.0625) / 2);
}

BOOST_AUTO_TEST_CASE(binary_takes_integers_and_probabilities) {
  Binary task({});
  Told model;
  const Tensor logits = tensor({3, 1}, {2, -1, 0.5f});
  const std::vector<Batch> whole{Batch(0, {{"output", logits}, {"y", labels({1, 1, 0})}})},
      parts{Batch(0, {{"output", logits}, {"y", tensor({3, 1}, {1, 0.75f, 0.25f})}})};
  BOOST_TEST(metric(task, model, "accuracy", whole) == 1.0 / 3);
  BOOST_TEST(metric(task, model, "accuracy", parts) == 1.0 / 3);
  BOOST_TEST(metric(task, model, "loss", whole) ==
                 (std::log1p(std::exp(-2.0)) + std::log1p(std::exp(1.0)) + std::log1p(std::exp(0.5))) / 3,
             boost::test_tools::tolerance(1e-6));
}

template <class E>
void check_error(const std::function<void()>& action, const std::string& words) {
  BOOST_CHECK_EXCEPTION(action(), E, mentions(words));
}

BOOST_AUTO_TEST_CASE(data_that_does_not_fit_a_task_is_named) {
  const Told model(3);
  check_error<DataError>([&] { Classification({}).check(model, floats()); },
                         "made.h5: field y is float32 [1], but task.name = classification learns integers");
  check_error<DataError>([&] { Classification({}).check(model, integers(4)); },
                         "made.h5: field y has values up to 3, but the model has 3 classes (0 to 2)");
  check_error<DataError>([&] { Regression({}).check(model, integers()); }, "learns numbers: floats");
  check_error<DataError>([&] { Binary({}).check(model, integers(3)); }, "learns 0 and 1");
  check_error<UsageError>([&] { Classification({.per_class = true}).check(Told(), integers()); },
                          "task.per_class = true: the model does not say how many classes it has");
  check_error<DataError>([&] { Regression({}).check(model, Fields({{.name = "x", .shape = {2}}})); },
                         "has no field 'y'");
  tape.begin({.training = false, .record = false});
  Told told;
  Binary yes_or_no({});
  for (const float bad : {-0.5f, 2.0f, std::nanf("")}) {
    const Batch wrong(0, {{"output", tensor({1, 1}, {0})}, {"y", tensor({1, 1}, {bad})}});
    check_error<DataError>([&] { yes_or_no(tape, told, wrong); }, "learns values from 0 to 1");
  }
  const Batch other_shape(0, {{"output", tensor({2, 3}, {0, 0, 0, 0, 0, 0})}, {"y", tensor({2}, {0, 0})}});
  check_error<DataError>([&] { Regression({})(tape, told, other_shape); },
                         "of 2 samples, the model's output is [2, 3], but field y is [2]");
  check_error<DataError>([&] { Regression({})(tape, told, Batch(tensor({1}, {0}))); },
                         "the data has no field 'output'; it has x");
}

/// A task of a program that does what is told.
struct Wrong final : Task {
  Loss loss(Tape& tape, Model& model, const Batch& batch) override {
    if (what == "nothing") return {};
    if (what == "forward") return mse(model.forward(tape, batch), batch["y"]);
    return mse(model(tape, batch), what == "shape" ? tensor({5}, {0, 0, 0, 0, 0}) : batch["y"]);
  }
  void evaluate(Evaluation& to, const Batch&, const Var&) override {
    if (what == "name") to.add("rmsd", {1, 1});
    if (what == "sums") to.add("rmse", {1, 1, 1});
  }
  std::vector<Metric> metrics() const override { return {{.name = "rmse"}}; }
  std::string what;
};

BOOST_AUTO_TEST_CASE(what_is_wrong_about_a_task_is_one_line) {
  Told model;
  const Batch batch(0, {{"output", tensor({2, 1}, {0, 0})}, {"y", tensor({2, 1}, {0, 0})}});
  const auto check = [&]<class E>(const E*, const std::string& what, const std::string& words) {
    Wrong task;
    task.what = what;
    check_error<E>([&] { metric(task, model, "rmse", {batch}); }, words);
  };
  const UsageError* const usage = nullptr;
  const DataError* const data = nullptr;
  check(usage, "nothing", "the task returned an empty Loss");
  check(usage, "forward", "need the output of model(tape, batch), which was not called");
  check(
      usage, "name",
      "evaluate() adds to a metric rmsd, which metrics() does not name; the metrics are loss, rmse; did you "
      "mean rmse?");
  check(usage, "sums", "metric rmse has 2 sums, but 3 were added");
  check(data, "shape", "a batch of the data has output float32 [2, 1], y float32 [2, 1]");
}

/// Its option is a key that every section has.
struct Named final : Task {
  struct Options {
    std::string name;
    LOCKSTEP_KEYS(name, "a name")
  };
  explicit Named(const Options&) {}
  Loss loss(Tape&, Model&, const Batch&) override { return {}; }
};
struct Twice final : Task {
  struct Options {
    bool a = false;
    LOCKSTEP_KEYS(a, "once", a, "again")
  };
  explicit Twice(const Options&) {}
  Loss loss(Tape&, Model&, const Batch&) override { return {}; }
};

BOOST_AUTO_TEST_CASE(options_that_a_configuration_cannot_tell_apart_are_refused) {
  lockstep::tasks::Registry registry;
  check_error<UsageError>([&] { registry.add<Named>("named"); }, "named: the option name already exists");
  check_error<UsageError>([&] { registry.add<Twice>("twice"); }, "twice: the option a already exists");
  BOOST_TEST(registry.types().empty());
}

BOOST_AUTO_TEST_CASE(a_program_replaces_a_built_in_thing_and_two_of_its_own_with_one_name_are_refused) {
  Registries registries;
  add_built_in(registries);
  struct Empty final : Task {
    Loss loss(Tape&, Model&, const Batch&) override { return {}; }
  };
  check_error<UsageError>([&] { registries.tasks.add<Empty>("two words"); }, "is invalid: use letters");
  registries.tasks.add<Empty>("mine");  // without Options
  BOOST_TEST(!!registries.tasks.configure("mine").make());
  BOOST_TEST(!registries.tasks.configure("mine").type->replaces_built_in);
  check_error<UsageError>([&] { registries.tasks.add<Empty>("mine"); }, "the name mine is registered twice");

  const std::vector<std::string> names = registries.tasks.names();
  const std::string text = registries.tasks.text();
  registries.tasks.add<Empty>("classification");  // a program's wins over the built-in one, which had a key
  BOOST_TEST(registries.tasks.names() == names, boost::test_tools::per_element());
  BOOST_TEST(registries.tasks.text() != text);
  const lockstep::tasks::TaskConfig own = registries.tasks.configure("classification");
  BOOST_TEST(own.type->replaces_built_in);
  BOOST_TEST(own.type->options.empty());
  const std::unique_ptr<Task> made = own.make();
  BOOST_TEST(!!dynamic_cast<Empty*>(made.get()));
  check_error<UsageError>([&] { registries.tasks.add<Empty>("classification"); }, "is registered twice");
}

/// Keys without more than a name and a meaning.
struct Options {
  std::int64_t width = 64;
  double rate = 0.5;
  bool residual = true;
  std::string norm = "group";
  std::vector<std::int64_t> sizes{1, 2};
  LOCKSTEP_KEYS(width, "features", rate, "of dropout", residual, "adds the input", norm, "which one", sizes,
                "of layers")
};

BOOST_AUTO_TEST_CASE(members_and_their_meanings_are_keys) {
  Options options;
  std::string text;
  for (const Option<Options>& option : Options::options()) {
    if (option.name == "width") option.set(options, "128");
    if (option.name == "residual") option.set(options, "false");
    text += option.name + "=" + option.get(options) + " ";
  }
  BOOST_TEST(text == "width=128 rate=0.5 residual=false norm=group sizes=1 2 ");
  BOOST_TEST(Options::options()[1].meaning == "of dropout");
  BOOST_CHECK_THROW(Options::options()[0].set(options, "1.5"), UsageError);
  BOOST_TEST(Options::options()[0].form() == "whole number");
}

BOOST_AUTO_TEST_SUITE_END()
BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
