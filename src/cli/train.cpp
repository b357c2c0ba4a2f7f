// lockstep train: trains a model, or resumes a run.
#include <fmt/format.h>

#include <filesystem>

#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "train/config.h"
#include "train/run/trainer.h"

namespace lockstep::cli {
namespace {

/// UsageError if --resume and --set train.init name different files. --resume FILE overrides train.init of
/// the configuration file.
void check_one_start(const Arguments& overrides, const std::string& resume) {
  constexpr std::string_view key = "train.init=";
  if (resume == "auto" || resume == "never") return;
  for (const std::string& text : overrides) {
    if (text.starts_with(key) && text.substr(key.size()) != resume)
      throw UsageError("train: --resume {} and --set {} name different files to start from; use one of them",
                       resume, text);
  }
}

/// UsageError if --resume or train.init names a file to start from, in addition to --fork.
void check_fork(const train::RunOptions& run, const train::Config& config) {
  if (run.resume != "auto" && run.resume != "never")
    throw UsageError("train: --fork {} and --resume {} name two files to start from; use one of them",
                     run.fork, run.resume);
  if (!config.train.init.empty() && !is_directory(config.train.init))  // a folder says the model's options
    throw UsageError("train: --fork {} and train.init = {} name two files to start from; use one of them",
                     run.fork, config.train.init);
}

void add_options(OptionSet& options) {
  options.add()("set", po::value<Arguments>()->composing(),
                "override a key: SECTION.KEY=VALUE; may be repeated");
  options.add()("run", po::value<std::string>(), "run directory; default: runs/NAME for NAME.ini");
  options.add()("resume", po::value<std::string>()->default_value("auto"),
                "auto; never: fail if DIR has a run; FILE: new run");
  options.add()("fork", po::value<std::string>(), "new run from the complete state of this checkpoint");
  options.add()("dry-run", "write nothing; print the resolved config.ini");
  options.add()("help-keys", "list all configuration keys");
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
  } catch (const std::exception&) {  // the verb reports the error, once for all ranks
    return default_start_timeout_s;
  }
}

ExitCode train(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "train CONFIG [--set KEY=VALUE ...] [--run DIR] [OPTIONS]",
                    "Trains the model that CONFIG describes on all ranks that mpirun or srun started.\n"
                    "DIR holds the run: config.ini, metrics.jsonl, checkpoints/.\n\n"
                    "The same command resumes the run from its newest checkpoint, with the same bits,\n"
                    "on any number of ranks up to train.shards. Create the file DIR/stop to save a\n"
                    "checkpoint and stop, DIR/checkpoint to save one and continue.\n\n"
                    "--resume FILE starts a new run from the weights of FILE; train.init is ignored.\n"
                    "--fork FILE starts a new run from the complete state of FILE (weights, EMAs,\n"
                    "optimizer, step) under any configuration, and lists the differences. If seed,\n"
                    "batch, data or number of shards differ, samples follow the new order from that\n"
                    "step on. --dry-run reports what a start would do, and fails if the start would\n"
                    "fail, with the same exit code.");
  add_options(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("help-keys")) {
    if (session.world().rank() == 0) print(train::describe_keys(program.registries));
    return ExitCode::done;
  }
  const std::string path = options.required(values, "config", "the configuration file is missing");
  train::RunOptions run{.directory = values.count("run")
                                         ? values["run"].as<std::string>()
                                         : "runs/" + std::filesystem::path(path).stem().string(),
                        .resume = values["resume"].as<std::string>(),
                        .fork = option_text(values, "fork").value_or("")};
  const Arguments overrides = overrides_of(values);
  train::Config config;
  comm::run_on_all(session.world(), [&] {
    check_one_start(overrides, run.resume);
    config = train::read_config(path, overrides, program.registries);
    if (option_text(values, "fork") == "") throw options.error("--fork: the file name is missing");
    if (!run.fork.empty()) check_fork(run, config);
  });
  if (values.count("dry-run") == 0) return train::train(session, config, run);
  train::dry_run(session, config, run, [&session](const train::Config& resolved) {
    on_rank_0(session, [&] {
      print(train::to_text(resolved));
      flush_output();  // before the log lines
    });
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
