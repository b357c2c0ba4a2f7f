// lockstep bench: how long things take here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/bench.h"
#include "cli/verb.h"
#include "comm/benchmark.h"
#include "kernels/gpus.h"
#include "train/benchmark.h"
#include "train/precision.h"

namespace lockstep::cli {
namespace {

constexpr double bytes_per_mib = 1 << 20;

std::string workload_names() {
  std::vector<std::string> names;
  for (const train::StandardWorkload& workload : train::standard_workloads()) names.push_back(workload.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void add_workload(OptionSet& options) {
  options.add()("workload", po::value<std::string>()->default_value("gpt-cpu"), "which one");
  options.add()("steps", po::value<std::int64_t>()->default_value(20), "steps measured");
}

/// "2 ranks on 1 machine"
std::string where(const comm::HostGroup& world) {
  return pluralized(world.size(), "rank") + " on " + pluralized(world.topology().nodes(), "machine");
}

/// The sizes of --bytes.
std::vector<std::size_t> sizes_in(const std::vector<std::int64_t>& bytes) {
  constexpr std::int64_t element = sizeof(float), most = element * std::numeric_limits<int>::max();
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : bytes) {
    if (size < element || size > most || size % element != 0)
      throw UsageError(
          "bench allreduce: --bytes {}: must be a multiple of {} from {} to {}; see lockstep bench allreduce "
          "--help",
          size, element, element, most);
    sizes.push_back(static_cast<std::size_t>(size));
  }
  return sizes;
}

ExitCode bench_allreduce(Session& session, const Arguments& arguments) {
  OptionSet options("bench allreduce [--bytes N ...] [--json]",
                    "Times the sum of float32 vectors over all ranks along the reduction tree, beside\n"
                    "MPI_Allreduce in place, in alternation; medians of the slowest rank. Every\n"
                    "result is checked, bit by bit: exit code 5 if one is wrong.");
  options.add()("bytes", po::value<std::vector<std::int64_t>>()->multitoken(),
                "sizes, multiples of 4; default: 64 KiB to 100 MiB, odd lengths among them");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  constexpr std::size_t kib = 1 << 10, mib = 1 << 20, element = sizeof(float);
  const std::vector<std::size_t> usual{64 * kib, 256 * kib + element, mib,      4 * mib + 7 * element,
                                       16 * mib, 25 * mib - element,  100 * mib};
  const std::vector<comm::AllReduceTime> times = comm::time_all_reduce(
      session.transport(),
      values.count("bytes") ? sizes_in(values["bytes"].as<std::vector<std::int64_t>>()) : usual);
  if (session.world().rank() == 0 && values.count("json")) {
    nlohmann::json rows = nlohmann::json::array();
    for (const comm::AllReduceTime& time : times) {
      nlohmann::json row{{"bytes", time.bytes},
                         {"ranks", time.ranks},
                         {"lockstep_ms", time.lockstep_ms},
                         {"mpi_ms", nullptr},
                         {"ratio", nullptr}};
      if (time.mpi_ms > 0) {
        row["mpi_ms"] = time.mpi_ms;
        row["ratio"] = time.mpi_ms / time.lockstep_ms;
      }
      rows.push_back(std::move(row));
    }
    fmt::print("{}\n", nlohmann::json{{"rows", rows}}.dump(2));
  } else if (session.world().rank() == 0) {
    fmt::print("{}, ms\n{:>12}{:>12}{:>12}{:>10}{:>8}\n", where(session.world()), "bytes", "lockstep", "MPI",
               "ratio", "exact");
    for (const comm::AllReduceTime& time : times) {
      fmt::print("{:>12}{:>12.4f}{:>12}{:>10}{:>8}\n", time.bytes, time.lockstep_ms,
                 time.mpi_ms > 0 ? fmt::format("{:.4f}", time.mpi_ms) : "-",
                 time.mpi_ms > 0 ? fmt::format("{:.2f}", time.mpi_ms / time.lockstep_ms) : "-",
                 time.exact ? "yes" : "NO");
    }
  }
  for (const comm::AllReduceTime& time : times) {
    if (!time.exact)
      throw FailureError(
          "bench allreduce: the sum of {} bytes on {} ranks has not the bits of the reduction tree",
          time.bytes, time.ranks);
  }
  return ExitCode::done;
}

ExitCode bench_step(Session& session, const Arguments& arguments) {
  OptionSet options("bench step [--workload NAME] [--profile | --passes K] [OPTIONS]",
                    "Times whole training steps of a standard workload on made-up data, on all ranks.\n"
                    "Every time is a median over steps, of the slowest rank in each.\nWorkloads: " +
                        workload_names() + ".");
  add_workload(options);
  options.add()("profile",
                "what a step is made of: time, arithmetic and memory traffic of each operation on rank 0");
  add_device(options);
  options.add()("set", po::value<Arguments>()->composing(),
                "a key of the workload's model or optimizer: model.recompute=true");
  options.add()("precision", po::value<std::string>()->default_value("fp32"), "fp32 or bf16");
  options.add()("bf16-fallback", po::value<std::string>()->default_value("refuse"),
                "where bf16 would be slower: refuse, fp32 or convert");
  options.add()("passes", po::value<int>(),
                "the price of the tree: a rank's batch in K shards, beside K micro batches");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string workload = values["workload"].as<std::string>();
  const std::int64_t steps = values["steps"].as<std::int64_t>();
  session.use_device(given(values, "device").value_or("auto"));
  const Arguments overrides = values.count("set") ? values["set"].as<Arguments>() : Arguments{};
  if (!overrides.empty() && (values.count("profile") || values.count("passes")))
    throw UsageError("bench step: --set goes with neither --profile nor --passes; leave one of them out");
  const DType compute = train::settle_precision(session, values["precision"].as<std::string>(),
                                                values["bf16-fallback"].as<std::string>());
  if (values.count("profile")) {
    if (values.count("passes"))
      throw UsageError("bench step: --profile and --passes are two things to measure; leave one of them out");
    print_profile(session, workload, steps, values.count("json") != 0, compute);
    return ExitCode::done;
  }
  if (values.count("passes")) {
    if (values.count("json"))
      throw UsageError("bench step: --passes has no JSON form; leave one of the two out");
    const train::TreeOrderTimes times =
        train::time_tree_order(session, workload, steps, values["passes"].as<int>(), compute);
    if (session.world().rank() == 0)
      fmt::print(
          "{} on {} in {} passes a rank: {:.1f} ms a step along the tree ({} accumulation buffers of {:.1f} "
          "MiB), "
          "{:.1f} added in order: {:+.1f} %\n",
          workload, where(session.world()), times.passes, times.tree_ms, times.accumulators,
          static_cast<double>(times.accumulator_bytes) / bytes_per_mib, times.in_order_ms,
          100 * (times.tree_ms / times.in_order_ms - 1));
    return ExitCode::done;
  }

  const train::StepTimes times = train::time_steps(session, workload, steps, compute, overrides);
  if (session.world().rank() != 0) return ExitCode::done;
  // A process's own memory is the host's: that of a GPU is not in it.
  const bool on_cpu = session.backend().device() == Device::cpu();
  if (values.count("json")) {
    fmt::print("{}\n", nlohmann::json{{"model", times.model},
                                      {"precision", times.precision},
                                      {"device", kernels::name_of(session.backend().device())},
                                      {"ranks", times.ranks},
                                      {"step_ms", times.step_ms},
                                      {"samples_per_second", times.samples_per_second},
                                      {"exposed_comm_ms", times.exposed_comm_ms},
                                      {on_cpu ? "peak_memory_bytes" : "peak_host_memory_bytes",
                                       times.peak_memory_bytes},
                                      {"page_faults", times.page_faults}}
                           .dump(2));
  } else {
    fmt::print("{} {} on {}, {}: {:.1f} ms a step, {:.0f} samples/s, {:.2f} ms of communication exposed\n",
               times.model, times.precision, pluralized(times.ranks, "rank"),
               kernels::name_of(session.backend().device()), times.step_ms, times.samples_per_second,
               times.exposed_comm_ms);
    fmt::print("peak {}memory {:.0f} MiB a rank, {:.1f} page faults a step\n", on_cpu ? "" : "host ",
               times.peak_memory_bytes / bytes_per_mib, times.page_faults);
  }
  return ExitCode::done;
}

void print_buckets(const train::OverlapTimes& times) {
  fmt::print("\n{}: header {:.2f} ms, optimizer {:.1f} ms\n", times.mode, times.header_ms,
             times.optimizer_ms);
  fmt::print("{:>8}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "bucket", "MiB", "ready", "wire", "started", "done");
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    const train::BucketFigures& bucket = times.buckets[b];
    fmt::print("{:>8}{:>10.3f}{:>12.2f}{:>12.2f}{:>12.2f}{:>12.2f}\n", b,
               static_cast<double>(bucket.bytes) / bytes_per_mib, bucket.ready_ms, bucket.wire_ms,
               bucket.start_ms, bucket.done_ms);
  }
}

ExitCode bench_overlap(Session& session, const Arguments& arguments) {
  OptionSet options("bench overlap [--workload NAME] [--bucket-mb X ...] [OPTIONS]",
                    "Times the three ways of communicating (ddp.mode) in alternation, beside the same\n"
                    "program without communication (compute), communication without the program\n"
                    "(comm), and what is possible (critical path: the greatest of compute and, for\n"
                    "any bucket, the moment it is ready plus the wire time of it and all later ones;\n"
                    "then header and optimizer). Milliseconds; medians of the slowest rank.\nWorkloads: " +
                        workload_names() + ".");
  add_workload(options);
  options.add()("bucket-mb", po::value<std::vector<double>>()->multitoken(),
                "ddp.bucket_mb of mode overlapped; several: a row each");
  options.add()("buckets",
                "say when each bucket of mode overlapped is ready, started and done, and its wire time");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const bool json = values.count("json") != 0, buckets = values.count("buckets") != 0;
  if (json && buckets)
    throw UsageError("bench overlap: --buckets has no JSON form; leave one of the two out");

  train::OverlapOptions wanted{.steps = values["steps"].as<std::int64_t>()};
  if (values.count("bucket-mb")) wanted.bucket_mb = values["bucket-mb"].as<std::vector<double>>();
  const std::string workload = values["workload"].as<std::string>();
  const std::vector<train::OverlapTimes> results = train::time_overlap(session, workload, wanted);
  if (session.world().rank() != 0) return ExitCode::done;
  if (json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const train::OverlapTimes& times : results) {
      rows.push_back({{"mode", times.mode},
                      {"step_ms", times.step_ms},
                      {"compute_ms", times.compute_ms},
                      {"comm_ms", times.comm_ms},
                      {"critical_path_ms", times.critical_path_ms},
                      {"exposed_comm_ms", times.exposed_comm_ms}});
    }
    fmt::print("{}\n", nlohmann::json{{"rows", rows}}.dump(2));
    return ExitCode::done;
  }
  fmt::print("{} on {}, ms\n", workload, where(session.world()));
  fmt::print("{:<18}{:>10}{:>10}{:>10}{:>15}{:>10}{:>15}{:>13}\n", "mode", "step", "compute", "comm",
             "critical path", "exposed", "step/critical", "step/compute");
  for (const train::OverlapTimes& times : results) {
    fmt::print("{:<18}{:>10.1f}{:>10.1f}{:>10.1f}{:>15.1f}{:>10.1f}{:>15.3f}{:>13.3f}\n", times.mode,
               times.step_ms, times.compute_ms, times.comm_ms, times.critical_path_ms, times.exposed_comm_ms,
               times.step_ms / times.critical_path_ms, times.step_ms / times.compute_ms);
  }
  for (const train::OverlapTimes& times : results) {
    if (buckets && times.mode.starts_with("overlapped")) print_buckets(times);
  }
  return ExitCode::done;
}

struct Subject {
  std::string_view name;
  ExitCode (*run)(Session& session, const Arguments& arguments);
};

constexpr std::array subjects{Subject{"allreduce", bench_allreduce}, Subject{"checkpoint", bench_checkpoint},
                              Subject{"overlap", bench_overlap}, Subject{"step", bench_step}};

}  // namespace

ExitCode bench(Session& session, const Arguments& arguments) {
  for (const Subject& subject : subjects) {
    if (!arguments.empty() && arguments.front() == subject.name)
      return subject.run(session, Arguments(arguments.begin() + 1, arguments.end()));
  }
  std::vector<std::string_view> names;
  for (const Subject& subject : subjects) names.push_back(subject.name);
  OptionSet options(fmt::format("bench {} [OPTIONS]", fmt::join(names, "|")),
                    "Measures, alone or under mpirun or srun:\n"
                    "  allreduce   sums over all ranks beside MPI_Allreduce, every result checked\n"
                    "  checkpoint  saves beside bare writes, and beside training\n"
                    "  overlap     how much of a step's communication shows, beside what is possible\n"
                    "  step        whole training steps of a standard workload\n"
                    "lockstep bench NAME --help tells more; with --json each prints a JSON document.");
  options.positional("what");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  throw UsageError("bench: cannot measure '{}'; one of {}",
                   required(values, "what", "bench: say what to measure: lockstep bench step"),
                   fmt::join(names, ", "));
}

}  // namespace lockstep::cli
