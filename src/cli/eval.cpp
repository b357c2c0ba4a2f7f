// lockstep eval: evaluates the weights of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/train/evaluate.h"
#include "train/components.h"

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
  options.add()("json", "print one JSON document");
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
  Tape tape(session.backend());
  const train::EvaluationResult found = train::evaluate({.model = saved.model(),
                                                         .task = saved.task(),
                                                         .tape = tape,
                                                         .world = session.world(),
                                                         .compute = saved.compute()},
                                                        *data->eval());
  if (session.world().rank() != 0) return ExitCode::done;
  nlohmann::json report = {{"samples", found.samples}, {"weights", saved.weights()}, {"step", saved.step()}};
  std::string metrics;
  const std::vector<Metric> known = train::metrics_of(saved.task());
  for (const auto& [name, value] : found.metrics) {
    report[name] = value;
    if (std::ranges::find(known, name, &Metric::name)->printed)
      metrics += fmt::format("{}{} {}", metrics.empty() ? "" : ", ", name, figure(value));
  }
  if (values.count("json")) {
    print_json(report);
  } else {
    fmt::print("{} of step {}: {} ({} samples of {})\n", saved.weights(), saved.step(), metrics,
               found.samples, option_text(values, "data").value_or(data->eval()->name()));
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
