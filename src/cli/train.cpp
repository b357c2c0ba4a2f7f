// lockstep train: trains a model, or resumes a run.
#include <fmt/format.h>

#include <filesystem>

#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "train/config.h"
#include "train/run/trainer.h"

namespace lockstep::cli {
namespace {

/// UsageError if --resume and --set train.init name different files. --resume overrides train.init of the
/// configuration file.
void check_one_start(const Arguments& overrides, const std::string& resume) {
  constexpr std::string_view key = "train.init=";
  if (resume == "auto" || resume == "never") return;
  for (const std::string& text : overrides) {
    if (text.starts_with(key) && text.substr(key.size()) != resume)
      throw UsageError("train: --resume {} and --set {} name different files to start from; give one", resume,
                       text);
  }
}

/// UsageError if --fork comes with another file to start from.
void check_fork(const train::RunOptions& run, const train::Config& config) {
  if (run.resume != "auto" && run.resume != "never")
    throw UsageError("train: --fork {} and --resume {} name two files to start from; give one", run.fork,
                     run.resume);
  if (!config.train.init.empty())
    throw UsageError("train: --fork {} and train.init = {} name two files to start from; give one", run.fork,
                     config.train.init);
}

/// Adds the options of lockstep train.
void add_options(OptionSet& options) {
  options.add()("set", po::value<Arguments>()->composing(),
                "override a key of the configuration: SECTION.KEY=VALUE");
  options.add()("run", po::value<std::string>(), "run directory");
  options.add()("resume", po::value<std::string>()->default_value("auto"),
                "auto: resume the run in DIR; never: refuse to; FILE: a new run from its weights");
  options.add()("fork", po::value<std::string>(), "FILE: a new run from the whole state of this checkpoint");
  options.add()("dry-run", "all that comes before the first step; writes nothing, prints config.ini");
  options.add()("help-keys", "list the keys of a configuration");
  options.positional("config");
}

Arguments overrides_of(const po::variables_map& values) {
  return values.count("set") ? values["set"].as<Arguments>() : Arguments{};
}

}  // namespace

double start_timeout_s(const Program& program, const Arguments& words) {
  if (words.empty() || words[0] != "train") return default_start_timeout_s;
  try {
    OptionSet options(program, "train", "");
    add_options(options);
    po::variables_map values;
    if (!options.parse(false, {words.begin() + 1, words.end()}, values) || values.count("config") == 0)
      return default_start_timeout_s;
    return train::read_config(values["config"].as<Arguments>().front(), overrides_of(values),
                              program.registries)
        .fault.hang_timeout_s;
  } catch (const std::exception&) {  // the verb reports it, once for all ranks
    return default_start_timeout_s;
  }
}

ExitCode train(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "train CONFIG [--set KEY=VALUE ...] [--run DIR] [OPTIONS]",
                    "Trains the model that CONFIG describes, on all ranks that mpirun or srun\n"
                    "started. The run lives in DIR (default: runs/NAME of CONFIG): config.ini,\n"
                    "metrics.jsonl, checkpoints/. A later start resumes from the newest checkpoint at\n"
                    "any number of ranks up to train.shards, with the same bits. A file RUN/stop asks\n"
                    "for a checkpoint and the end, RUN/checkpoint for a checkpoint. --resume FILE\n"
                    "starts a new run from the weights of FILE and ignores train.init. --fork FILE\n"
                    "starts a new run from all of its state (weights, optimizer, EMAs, step), under\n"
                    "any configuration. Differences are listed; with another seed, batch, data or\n"
                    "number of shards, samples come from the new order, from that step on. --dry-run\n"
                    "says what a start would do, with its exit code if it would fail.");
  add_options(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("help-keys")) {
    if (session.world().rank() == 0) print(train::describe_keys(program.registries));
    return ExitCode::done;
  }
  const std::string path = options.required(values, "config", "a configuration file is missing");
  train::RunOptions run{.directory = values.count("run")
                                         ? values["run"].as<std::string>()
                                         : "runs/" + std::filesystem::path(path).stem().string(),
                        .resume = values["resume"].as<std::string>(),
                        .fork = given(values, "fork").value_or("")};
  const Arguments overrides = overrides_of(values);
  train::Config config;
  comm::run_on_all(session.world(), [&] {
    check_one_start(overrides, run.resume);
    config = train::read_config(path, overrides, program.registries);
    if (given(values, "fork") == "") throw options.error("--fork names no file");
    if (!run.fork.empty()) check_fork(run, config);
  });
  if (values.count("dry-run") == 0) return train::train(session, config, run);
  train::dry_run(session, config, run, [&session](const train::Config& resolved) {
    on_rank_0(session, [&] {
      print(train::to_text(resolved));
      flush_output();  // before what is logged
    });
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
