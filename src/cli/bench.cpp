// lockstep bench: how long things take here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "lockstep/train/benchmark.h"

namespace lockstep::cli {
namespace {

std::string workload_names() {
  std::vector<std::string> names;
  for (const train::StandardWorkload& workload : train::standard_workloads()) names.push_back(workload.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

ExitCode bench(Session& session, const Arguments& arguments) {
  OptionSet options("bench step [--workload NAME] [--steps N] [--json]",
                    "Times whole training steps of a standard workload on made-up data, on all ranks; every "
                    "time is a median\n"
                    "over steps, of the slowest rank in each. Workloads: " +
                        workload_names() + ".");
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"), "which one");
  options.add()("steps", po::value<std::int64_t>()->default_value(20), "steps measured");
  options.add()("json", "print one JSON document");
  options.positional("what");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string what = required(values, "what", "bench: say what to time: lockstep bench step");
  if (what != "step") throw UsageError("bench: cannot measure '{}' in this version; try: bench step", what);

  const train::StepTimes times =
      train::time_steps(session, values["workload"].as<std::string>(), values["steps"].as<std::int64_t>());
  if (session.world().rank() != 0) return ExitCode::done;
  if (values.count("json")) {
    fmt::print("{}\n", nlohmann::json{{"model", times.model},
                                      {"precision", times.precision},
                                      {"ranks", times.ranks},
                                      {"step_ms", times.step_ms},
                                      {"samples_per_second", times.samples_per_second},
                                      {"exposed_comm_ms", times.exposed_comm_ms}}
                           .dump(2));
  } else {
    fmt::print("{} {} on {} rank{}: {:.1f} ms a step, {:.0f} samples/s, {:.2f} ms of communication exposed\n",
               times.model, times.precision, times.ranks, times.ranks == 1 ? "" : "s", times.step_ms,
               times.samples_per_second, times.exposed_comm_ms);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
