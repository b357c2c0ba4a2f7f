// lockstep bench checkpoint: saves beside bare writes and during training.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/bench.h"
#include "train/benchmark.h"

namespace lockstep::cli {
namespace {

void print_table(const train::CheckpointTimes& times) {
  const auto rates = [](const char* what, double ours, const char* bare_what, double bare) {
    fmt::print("{:<42}{:>8.0f} MB/s   {:<20}{:>8.0f} MB/s   ratio {:.2f}\n", what, ours, bare_what, bare,
               ours / bare);
  };
  fmt::print("{:.0f} MB on {}\n", static_cast<double>(times.bytes) / 1e6, pluralized(times.ranks, "rank"));
  rates("save, waited for", times.write_mb_s, "pwrite and fsync", times.raw_mb_s);
  rates("verify, from storage", times.read_mb_s, "pread", times.raw_read_mb_s);
  rates("verify, from memory", times.cached_read_mb_s, "pread", times.raw_cached_read_mb_s);
  fmt::print(
      "asynchronous save: returns after {:.1f} ms ({:.1f} % of the {:.0f} ms of one that is waited for; "
      "a copy takes {:.1f} ms), through after {:.0f} ms\n",
      times.async_stall_ms, 100 * times.async_stall_ms / times.sync_ms, times.sync_ms, times.copy_ms,
      times.async_ms);
  fmt::print("training beside it: {:.1f} ms a step, {:.1f} without (ratio {:.3f})\n",
             times.step_while_saving_ms, times.step_ms, times.step_while_saving_ms / times.step_ms);
  fmt::print("5,000 tensors of 1 KiB: {:.0f} ms\n", times.many_ms);
}

}  // namespace

ExitCode bench_checkpoint(Session& session, const Arguments& arguments) {
  OptionSet options("bench checkpoint [--mib N] [--directory DIR] [OPTIONS]",
                    "Times saves on the storage of DIR, in alternation with bare writes and reads of\n"
                    "the same bytes by the same ranks, and beside training on a standard workload.\n"
                    "Medians over rounds, of the slowest rank. Its files are removed in the end.");
  options.add()("mib", po::value<std::int64_t>()->default_value(1024), "size, in MiB");
  options.add()("directory", po::value<std::string>()->default_value("."), "on the storage to measure");
  options.add()("rounds", po::value<int>()->default_value(5), "how often each is timed");
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"), "what trains beside a save");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::int64_t mib = values["mib"].as<std::int64_t>();
  if (mib < 1 || mib > (std::int64_t{1} << 24))
    throw UsageError("bench checkpoint: --mib {}: must be from 1 to 16777216", mib);
  const train::CheckpointTimes times =
      train::time_checkpoint(session, {.bytes = static_cast<std::uint64_t>(mib) << 20,
                                       .directory = values["directory"].as<std::string>(),
                                       .rounds = values["rounds"].as<int>(),
                                       .workload = values["workload"].as<std::string>()});
  if (session.world().rank() != 0) return ExitCode::done;
  if (!values.count("json")) {
    print_table(times);
    return ExitCode::done;
  }
  fmt::print("{}\n", nlohmann::json{{"bytes", times.bytes},
                                    {"ranks", times.ranks},
                                    {"write_mb_s", times.write_mb_s},
                                    {"raw_mb_s", times.raw_mb_s},
                                    {"ratio", times.write_mb_s / times.raw_mb_s},
                                    {"sync_ms", times.sync_ms},
                                    {"async_stall_ms", times.async_stall_ms}}
                         .dump(2));
  return ExitCode::done;
}

}  // namespace lockstep::cli
