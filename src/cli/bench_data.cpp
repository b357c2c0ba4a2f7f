// lockstep bench data: how fast the data of a run are read and decoded, and how fast its steps take them.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/resources.h"
#include "base/text.h"
#include "cli/bench.h"
#include "lockstep/comm/agreement.h"
#include "report/page.h"
#include "train/components.h"
#include "train/device.h"
#include "train/run/resume.h"
#include "train/threads.h"

namespace lockstep::cli {
namespace {

/// The loader alone with this many threads a rank; rates of all ranks.
struct DataRate {
  int threads = 0;
  double samples_per_second = 0;
  double read_mib_s = 0;  ///< by system calls: from storage, or its cache
};

/// 1, 2, 4 ... and the threads of the run.
std::vector<int> default_threads(int of_run, int cores) {
  std::vector<int> threads{of_run};
  for (int count = 1; count <= cores; count *= 2) threads.push_back(count);
  std::ranges::sort(threads);
  threads.erase(std::ranges::unique(threads).begin(), threads.end());
  return threads;
}

DataRate time_loader(Session& session, const train::DataSets& data, const data::LoaderOptions& options,
                     std::int64_t steps) {
  comm::HostGroup& world = session.world();
  std::optional<data::Loader> loader;
  comm::run_on_all(world, [&] { loader.emplace(data.train(), options, world); });
  const std::int64_t warm_up = options.ahead + 1;
  comm::run_on_all(world, [&] {
    for (std::int64_t step = 0; step < warm_up; ++step) loader->at(step);
  });
  world.barrier();
  const std::uint64_t bytes_before = read_bytes_of_process();
  const Stopwatch watch;
  comm::run_on_all(world, [&] {
    for (std::int64_t step = warm_up; step < warm_up + steps; ++step) loader->at(step);
  });
  const double seconds = watch.elapsed_ms() / 1e3;
  const std::vector<std::uint64_t> bytes =
      comm::all_gather_values(world, read_bytes_of_process() - bytes_before);
  return {.threads = options.threads,
          .samples_per_second = static_cast<double>(steps * options.global_batch) / seconds,
          .read_mib_s = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0})) /
                        bytes_per_mib / seconds};
}

}  // namespace

ExitCode bench_data(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench data CONFIG [--threads N ...] [OPTIONS]",
                    "Reads the training data of a run without computing, for each number of threads a\n"
                    "rank, and compares with what its steps take. The first read of a file may come\n"
                    "from storage, later ones from the memory of the system.");
  options.add()("threads", po::value<std::vector<int>>()->multitoken(),
                "values of data.threads, a row each; default: 1, 2, 4 ... cores of the rank");
  options.add()("steps", po::value<std::int64_t>()->default_value(20), "steps measured");
  options.add()("set", po::value<Arguments>()->composing(),
                "override a key of CONFIG: SECTION.KEY=VALUE; may be repeated");
  options.positional("config");
  add_device(options);
  add_output(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const ResultOutput output(values, session);
  const std::string path = options.required(values, "config", "a configuration is missing");
  const std::int64_t steps = values["steps"].as<std::int64_t>();
  train::check_steps(steps, "data");
  train::Config config;
  comm::run_on_all(session.world(), [&] {
    const Arguments overrides = values.count("set") ? values["set"].as<Arguments>() : Arguments{};
    config = train::read_config(path, overrides, program.registries);
  });
  session.use_device(
      option_text(values, "device").value_or(config.train.device),
      {.threads = std::max(1, config.train.threads), .reproducible = config.train.reproducible});
  const DType compute =
      train::choose_session_precision(session, config.train.precision, config.train.bf16_fallback);
  train::resolve_threads(config, session);

  train::WorkloadRun run(config, session, compute);
  train::Figures figures;
  for (std::int64_t step = 0; step < train::warm_up_steps + std::min<std::int64_t>(steps, 5); ++step) {
    const double step_ms = run.step().step_ms;
    if (step >= train::warm_up_steps) figures.add("step", step_ms);
  }
  figures.take_max(session.world());
  const double batch = static_cast<double>(run.config().train.global_batch),
               demand = batch / (figures.median("step") / 1e3);

  data::LoaderOptions how = train::loader_options(run.config(), run.data(), session);
  const int cores = train::loader_threads(session.world(), 0, 0);
  const std::vector<int> threads = values.count("threads") ? values["threads"].as<std::vector<int>>()
                                                           : default_threads(how.threads, cores);
  std::vector<DataRate> rates;
  for (const int count : threads) {
    if (count < 1 || count > 1024) throw UsageError("--threads {}: must be from 1 to 1024", count);
    data::LoaderOptions options_of_row = how;
    options_of_row.threads = count;
    rates.push_back(time_loader(session, run.data(), options_of_row, steps));
  }

  nlohmann::json rows = nlohmann::json::array();
  for (const DataRate& rate : rates)
    rows.push_back({{"threads", rate.threads},
                    {"samples_per_second", rate.samples_per_second},
                    {"read_mib_s", rate.read_mib_s}});
  const std::string what = fmt::format("{} ({})", run.data().train().name(), run.data().format());
  show(
      output, session,
      {{"data", what},
       {"step_ms", figures.median("step")},
       {"step_samples_per_second", demand},
       {"rows", rows}},
      [&] {
        fmt::print("{} on {}; a step of {} takes {:.1f} ms: {:.0f} samples/s\n\n", what,
                   ranks_and_nodes(session.world()), batch, figures.median("step"), demand);
        fmt::print("{:>8}{:>14}{:>12}{:>12}\n", "threads", "samples/s", "of steps", "read MiB/s");
        for (const DataRate& rate : rates)
          fmt::print("{:>8}{:>14.0f}{:>11.2f}x{:>12.1f}\n", rate.threads, rate.samples_per_second,
                     rate.samples_per_second / demand, rate.read_mib_s);
      },
      {"Data: " + what,
       "How many samples a second the loader prepares without computation, and how many the steps of the run "
       "take with all data at hand.",
       {{"a step", fmt::format("{:.1f} ms", figures.median("step"))},
        {"steps take", report::number(demand) + " samples/s"}}});
  return ExitCode::done;
}

}  // namespace lockstep::cli
