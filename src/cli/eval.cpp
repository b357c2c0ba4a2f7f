// lockstep eval: evaluates the weights of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tasks/built_in.h"
#include "lockstep/train/evaluate.h"
#include "train/components.h"
#include "train/infer/predict.h"

namespace lockstep::cli {
namespace {

/// Paths of data files are relative to the directory in which the run started.
void open_data_of_run(std::optional<train::DataSets>& data, train::Config config,
                      const models::Model& model) {
  config.train.eval_samples = 0;  // all samples
  try {
    data.emplace(config, model);
  } catch (const Error& error) {
    std::vector<std::string> paths;
    for (const train::TrainingFile& file : train::training_files(config.data)) paths.push_back(file.path);
    if (!config.data.eval.empty()) paths.push_back(config.data.eval);
    if (std::ranges::all_of(paths, exists)) throw;
    throw Error(
        error.code(),
        fmt::format("{}; give --data FILE, or use the directory in which the run started", error.what()));
  }
}

/// Another task, of which it also counts for each class which one is predicted.
class CountsByClass final : public Task {
 public:
  CountsByClass(Task& task, const Model& model)
      : task_(task),
        meaning_(task.output_meaning()),
        classes_(meaning_ == OutputMeaning::binary ? 2 : model.classes()),
        lengths_(model.output_lengths()) {
    if (meaning_ == OutputMeaning::regression || classes_ == 0)
      throw UsageError("--per-class: the model of the checkpoint tells no classes apart");
  }

  std::vector<Metric> metrics() const override {
    std::vector<Metric> all = task_.metrics();
    all.push_back({.name = "counts by class"});  // of no value, so that evaluate() is called
    return all;
  }
  Loss loss(Tape& tape, Model& model, const Batch& batch) override { return task_.loss(tape, model, batch); }
  std::string target() const override { return task_.target(); }
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override {
    task_.evaluate(to, batch, output);
    const Tensor predicted = train::labels_and_probabilities(floats_of(output), meaning_).first;
    Tape& tape = output.tape();
    const bool has_lengths = batch["y"].shape().rank() > 1 && batch.has(lengths_);
    const Tensor labels =
        floats_of(has_lengths ? keep_steps(tape, batch["y"], batch[lengths_], -1) : batch["y"], tape);
    if (predicted.numel() != labels.numel())
      throw UsageError("--per-class: {} predictions are no {} labels", predicted.numel(), labels.numel());
    for (std::int64_t i = 0; i < labels.numel(); ++i) {
      const float y = labels.data<float>()[i];
      if (y < 0) continue;  // ignored, or of a step that does not count
      const std::int64_t label = meaning_ == OutputMeaning::binary ? y >= 0.5f : static_cast<std::int64_t>(y);
      if (label < classes_) ++counts_[{label, predicted.data<std::int64_t>()[i]}];
    }
  }

  /// Those of all ranks, on rank 0; names are those of the first labels. Collective.
  nlohmann::json result(Session& session, std::vector<std::string> names) const {
    constexpr std::int64_t max_matrix = 1'000;  // classes
    const auto of_ranks = session.world().all_gather_texts(nlohmann::json(counts_).dump());
    if (session.world().rank() != 0) return nlohmann::json::object();
    const auto classes = static_cast<std::size_t>(classes_), side = classes_ <= max_matrix ? classes : 0;
    std::vector<std::vector<std::int64_t>> matrix(side, std::vector<std::int64_t>(side));
    std::vector<std::int64_t> samples(classes), correct(classes);
    std::int64_t not_finite = 0;
    for (const std::string& text : of_ranks)
      for (const auto& [cell, count] : nlohmann::json::parse(text).get<Counts>()) {
        const auto label = static_cast<std::size_t>(cell.first), as = static_cast<std::size_t>(cell.second);
        samples[label] += count;
        if (label == as) correct[label] += count;
        if (as < side) matrix[label][as] += count;
        not_finite += cell.second < 0 ? count : 0;
      }
    if (not_finite > 0)
      session.log().warning("{} have outputs that are not finite: they count as wrong, and as no class",
                            pluralized(not_finite, "sample"));
    nlohmann::json found{{"samples_by_class", samples}};
    for (std::size_t label = 0; label < classes; ++label) {
      if (names.size() == label) names.push_back(std::to_string(label));
      found["accuracy_by_class"].push_back(
          samples[label] == 0 ? nlohmann::json()
                              : nlohmann::json(double(correct[label]) / double(samples[label])));
    }
    names.resize(classes);
    found["classes"] = names;
    if (side > 0) found["confusion"] = matrix;
    return found;
  }

 private:
  using Counts = std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>;  // by label and prediction
  Task& task_;
  OutputMeaning meaning_;
  std::int64_t classes_;
  std::string lengths_;
  Counts counts_;
};

/// A line a class; of a few classes with the confusion matrix.
std::string table_of(const nlohmann::json& report) {
  constexpr std::size_t max_columns = 12, max_width = 24, min_width = 6;
  std::vector<std::string> names;
  std::size_t width = min_width;
  for (const std::string& name : report["classes"].get<std::vector<std::string>>()) {
    names.push_back(on_one_line(name).substr(0, max_width));
    width = std::max(width, names.back().size());
  }
  const bool has_matrix = names.size() <= max_columns;
  std::string text =
      fmt::format("{:<{}}  samples  accuracy{}", "class", width, has_matrix ? "  predicted" : "");
  for (std::size_t as = 0; has_matrix && as < names.size(); ++as)
    text += fmt::format("  {:>{}}", names[as], min_width);
  for (std::size_t label = 0; label < names.size(); ++label) {
    const nlohmann::json& accuracy = report["accuracy_by_class"][label];
    text += fmt::format("\n{:<{}}  {:>7}  {:>8}{:11}", names[label], width,
                        report["samples_by_class"][label].get<std::int64_t>(),
                        accuracy.is_null() ? "" : figure(accuracy.get<double>()), "");
    for (std::size_t as = 0; has_matrix && as < names.size(); ++as)
      text += fmt::format("  {:>{}}", report["confusion"][label][as].get<std::int64_t>(),
                          std::max(names[as].size(), min_width));
  }
  return text + "\n";
}

}  // namespace

ExitCode eval(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "eval FILE.h5 [--data DATA.h5] [--weights WHICH] [OPTIONS]",
                    "Prints the loss and metrics of a checkpoint over DATA, or over the run's own\n"
                    "evaluation data (data.eval, or the part that data.eval_fraction holds out).\n"
                    "Every sample counts once, on any number of ranks.");
  options.add()(
      "data", po::value<std::string>(),
      "HDF5 data file, table (.csv) or folder of pictures, all of it; default: evaluation data of the run");
  options.add()("fields", po::value<std::string>(),
                "arrays: names of fields in DATA, instead of data.fields of the run");
  options.add()("unknown", po::value<std::string>(), "as-missing: categories that training did not see");
  options.add()("own-statistics", "normalise by mean and deviation of DATA instead of the checkpoint's");
  SavedModel::add_options(options);
  options.add()("per-class", "also the accuracy of each class; the confusion matrix of up to 1000 classes");
  options.add()("json", "print one JSON document; lockstep report RUN FILE.json draws it");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  SavedModel saved(file, values, program, session);
  const bool own = values.count("own-statistics") > 0;
  std::optional<train::DataSets> data;
  train::Config config = saved.config();
  train::list_folders(config, session.world(), option_text(values, "data").value_or(""));
  comm::run_on_all(session.world(), [&] {
    if (const auto fields = option_text(values, "fields"))
      train::set_fields(config, saved.model(), option::words_of(*fields));
    if (values.count("data")) {
      data.emplace(config, saved.model(), values["data"].as<std::string>(), saved.learned_from(), true, own,
                   unknown_as_missing(values));
    } else {
      open_data_of_run(data, config, saved.model());
      data->use(saved.learned_from(), own);
    }
    if (!data->eval()) throw UsageError("eval: the run has no evaluation data; give --data FILE");
    train::check_data(saved.model(), saved.task(), *data->eval());
  });
  data->hold_on_node(session.world(), saved.config());
  if (own) data->measure(session.world());
  train::log_warnings(*data, session);
  train::warn_of_held_out(*data, session);
  Tape tape(session.backend());
  const auto* const classification = saved.config().task.options_of<tasks::Classification>();
  std::optional<CountsByClass> by_class;
  if (values.count("per-class") || (classification && classification->per_class))
    by_class.emplace(saved.task(), saved.model());
  const train::EvaluationResult found = train::evaluate({.model = saved.model(),
                                                         .task = by_class ? *by_class : saved.task(),
                                                         .tape = tape,
                                                         .world = session.world(),
                                                         .compute = saved.compute()},
                                                        *data->eval());
  if (found.metrics.empty())
    throw DataError("{}: nothing in it counts: all targets are empty, ignored or beyond their lengths",
                    data->eval()->name());
  const nlohmann::json classes =
      by_class ? by_class->result(session, saved.class_names()) : nlohmann::json::object();
  if (session.world().rank() != 0) return ExitCode::done;
  nlohmann::json report = {{"samples", found.samples}, {"weights", saved.weights()}, {"step", saved.step()}};
  std::string metrics;
  const std::vector<Metric> known = train::metrics_of(saved.task());
  for (const auto& [name, value] : found.metrics) {
    report[name] = value;
    const auto metric = std::ranges::find(known, name, &Metric::name);
    if (metric == known.end() || metric->printed)
      metrics += fmt::format("{}{} {}", metrics.empty() ? "" : ", ", name, figure(value));
  }
  report.update(classes);
  if (values.count("json")) {
    print_json(report);
  } else {
    print_line(fmt::format("{} of step {}: {} ({} samples of {})", saved.weights(), saved.step(), metrics,
                           found.samples, option_text(values, "data").value_or(data->eval()->name())));
    if (by_class) print(table_of(report));
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
