// lockstep train: train a model, or go on with a run.
#include <fmt/format.h>

#include <filesystem>

#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/train/trainer.h"

namespace lockstep::cli {

ExitCode train(Session& session, const Arguments& arguments) {
  OptionSet options("train CONFIG [--set SECTION.KEY=VALUE ...] [--run DIR] [--resume auto|never|FILE]",
                    "Trains the model that CONFIG describes, on all ranks that mpirun or srun started. The "
                    "run lives in DIR\n"
                    "(default: runs/NAME of CONFIG): config.ini, metrics.jsonl, checkpoints/. Started again "
                    "it goes on where DIR\n"
                    "stands, at any number of ranks up to train.shards, with the same bits. RUN/stop asks "
                    "for a checkpoint\n"
                    "and the end, RUN/checkpoint for a checkpoint.");
  options.add()("set", po::value<Arguments>()->composing(), "override a key of the configuration");
  options.add()("run", po::value<std::string>(), "run directory");
  options.add()("resume", po::value<std::string>()->default_value("auto"),
                "auto: go on where DIR stands; never: refuse to; FILE: a new run from its weights");
  options.add()("help-keys", "list the keys of a configuration");
  options.positional("config");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("help-keys")) {
    if (session.world().rank() == 0) fmt::print("{}", train::describe_keys());
    return ExitCode::done;
  }
  const std::string path =
      required(values, "config", "train: a configuration file is missing; see lockstep train --help");
  train::RunOptions run{.directory = values.count("run")
                                         ? values["run"].as<std::string>()
                                         : "runs/" + std::filesystem::path(path).stem().string(),
                        .resume = values["resume"].as<std::string>()};
  train::Config config;
  comm::together(session.world(), [&] {
    config = train::read_config(path, values.count("set") ? values["set"].as<Arguments>() : Arguments{});
  });
  return train::train(session, config, run);
}

}  // namespace lockstep::cli
