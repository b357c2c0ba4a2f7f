// lockstep status: shows what runs are doing, from their files alone.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/streams.h"
#include "base/text.h"
#include "cli/run_table.h"
#include "cli/verb.h"

namespace lockstep::cli {
namespace {

constexpr auto watch_interval = std::chrono::seconds(2);

template <class T>
nlohmann::json json_of(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json to_json(const std::vector<RunRow>& rows, const std::string& metric) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [run, status, value, differs] : rows) {
    all.push_back({{"run", run},
                   {"state", train::to_string(status.state)},
                   {"step", json_of(status.step)},
                   {"steps", json_of(status.steps)},
                   {"exit_code", json_of(status.exit_code)},
                   {"last_line_s", json_of(status.last_line_s)},
                   {"loss", json_of(status.loss)},
                   {"samples_per_second", json_of(status.samples_per_second)},
                   {"left_s", json_of(status.left_s)},
                   {"why", status.why}});
    if (!metric.empty()) all.back().update({{metric, json_of(value)}, {"differs", differs}});
  }
  return all;
}

}  // namespace

ExitCode status(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "status RUN|DIR... [--sort METRIC] [--json] [--watch]",
                    "Shows what each run, or each run in DIR, is doing, from another terminal or a\n"
                    "login node as well. Reads only files, takes no lock and writes nothing.\n\n"
                    "  training  a process holds the run: it starts, trains, evaluates or saves\n"
                    "  queued    the Slurm job of the run is in the queue again\n"
                    "  stopped   stopped by the user or preempted; the same command resumes it\n"
                    "  ended     done (exit code 0) or failed\n"
                    "  lost      its process is dead, or is on another host and silent for long\n\n"
                    "Exit codes: 0; 3 if a RUN is not a run directory and has none in it.");
  options.add()("sort", po::value<std::string>(),
                "the best run first, by a metric such as eval_loss; with loss, speed and time left");
  options.add()(
      "json",
      "print an array with one object per run: run, state, step, steps, exit_code, last_line_s, loss, "
      "samples_per_second, left_s, why; null: unknown");
  options.add()("watch", "repeat every 2 s until interrupted; with --json one array per line");
  options.positional("run", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("run") == 0) throw options.error("the run directory is missing");
  const bool json = values.count("json") > 0, watch = values.count("watch") > 0;
  const std::string metric = option_text(values, "sort").value_or("");
  const bool redraws = watch && !json && ::isatty(STDOUT_FILENO) != 0;
  for (;; std::this_thread::sleep_for(watch_interval)) {
    std::vector<RunRow> runs;
    std::string others;
    for (std::string run : values["run"].as<Arguments>()) {
      while (run.size() > 1 && run.ends_with('/')) run.pop_back();
      std::vector<RunRow> found = runs_at(run);
      if (found.empty()) others += (others.empty() ? "" : ", ") + quote(run);
      std::ranges::move(found, std::back_inserter(runs));
    }
    if (!metric.empty() && !runs.empty() && rank_by({metric}, runs).empty() && !watch)
      throw UsageError(
          "status: --sort {}: no run has this metric; metrics.jsonl has names, such as eval_loss", metric);
    if (redraws) print("\x1b[H\x1b[J");  // clears the screen
    if (json && watch) {
      print(json_text(to_json(runs, metric)) + "\n");
    } else if (json) {
      print_json(to_json(runs, metric));
    } else if (!runs.empty()) {
      print(to_table(runs, watch || !metric.empty(), metric));
    }
    flush_output();
    if (!others.empty())
      throw DataError("status: not a run directory: {}; give directories that lockstep train created",
                      others);
    if (!watch) return ExitCode::done;
  }
}

}  // namespace lockstep::cli
