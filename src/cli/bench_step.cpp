// lockstep bench step: times training steps of a standard workload or a run, or with --profile each operation
// of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/resources.h"
#include "base/text.h"
#include "cli/bench.h"
#include "kernels/gpus.h"
#include "kernels/profile.h"
#include "lockstep/comm/agreement.h"
#include "report/report.h"
#include "train/device.h"
#include "train/run/resume.h"

namespace lockstep::cli {
namespace {

using kernels::OperationFigures;
using train::WorkloadRun;

struct StepOptions {
  std::string workload;                                ///< its name, or the configuration file of a run
  std::optional<train::Config> config = std::nullopt;  ///< of a run
  std::int64_t steps = 0;                              ///< to measure
  DType compute = DType::float32;
  int shards = 1, micro_batches = 1;  ///< per rank; per shard
  ddp::Graph graph = ddp::Graph::automatic;
  Arguments overrides = {};
};

ddp::Graph graph_of(const std::string& word) {
  try {
    return option::named<ddp::Graph>(word);
  } catch (const UsageError&) {
    throw UsageError("--graph {}: must be auto, true or false", word);
  }
}

/// The result of time_steps(); times are those of the slowest rank.
struct StepResult {
  std::vector<double> step_ms, exposed_comm_ms;  ///< of each step
  double median_ms = 0, exposed_median_ms = 0, peak_bytes = 0, page_faults = 0;
  double device_bytes = 0;  ///< peak GPU memory: tensors, graphs, accumulation buffers
  double samples_per_second = 0;
  double tflops = 0;                  ///< TFLOP/s of the matrix products of rank 0
  std::optional<double> mfu = {};     ///< tflops divided by the peak of the GPU's data sheet
  int shards = 1, micro_batches = 1;  ///< maximum per rank; per shard
  int accumulation_buffers = 1;
  ddp::ShardsAtOnce at_once = {};
  std::string launched = {};  ///< on a GPU: how steps were launched; else empty
  bool captured = false;      ///< whether all steps were launched as graphs
};

/// Whether rank 0's GPU computes only the model's arithmetic, and only for rank 0, so that the MFU is
/// defined.
bool computes_only_the_model(const train::Config& config, const comm::HostGroup& world) {
  const bool shares = world.size() > 1 && std::getenv("LOCKSTEP_SHARE_GPU");
  return !shares && config.model.value("recompute") != "true" &&
         !config.optimizer.algorithm.type->traits.undivided;
}

WorkloadRun workload_run(Session& session, const StepOptions& options) {
  if (options.config) return {*options.config, session, options.compute};
  const train::StandardWorkload& workload = train::workload_named(options.workload);
  train::samples_of_shard(workload, options.shards,
                          options.micro_batches);  // checked before it builds a large model
  for (const std::string& text : options.overrides) {
    const std::string section = text.substr(0, text.find('.'));
    if (section != "model" && section != "diffusion" && section != "optimizer" &&
        !text.starts_with("ddp.shards_at_once="))
      throw UsageError(
          "--set {}: a workload has keys of model, diffusion and optimizer, and ddp.shards_at_once, only",
          text);
  }
  return {workload,
          session.transport(),
          session.backend(),
          {.micro_batches = options.micro_batches, .compute = options.compute, .graph = options.graph},
          options.shards,
          options.overrides};
}

/// The measured steps as curves.
nlohmann::json steps_of(const StepResult& result) {
  nlohmann::json charts = nlohmann::json::array();
  for (const auto& [title, values] : {std::pair{"Step time", &result.step_ms},
                                      std::pair{"Exposed communication", &result.exposed_comm_ms}}) {
    report::Points points{{}, *values};
    for (std::size_t step = 1; step <= values->size(); ++step) points.x.push_back(static_cast<double>(step));
    points = report::reduce(points, report::max_points);
    charts.push_back({{"title", title},
                      {"unit", "ms"},
                      {"linear", true},
                      {"dots", points.x.size() <= 60},
                      {"x", {{"name", "measured step"}}},
                      {"curves", nlohmann::json::array({report::curve("slowest rank", "c0", points)})}});
  }
  return report::section("Steps", {{{"charts", {{"charts", std::move(charts)}}}}});
}

/// Times steps; each time is that of the slowest rank. Collective.
StepResult time_steps(Session& session, const StepOptions& options) {
  comm::HostGroup& world = session.world();
  kernels::Backend& backend = session.backend();
  WorkloadRun run = workload_run(session, options);
  const ddp::DataParallel& replicas = run.replicas();
  double flops = 0;  // per step
  for (std::int64_t step = 0; step < train::warm_up_steps; ++step) {
    const kernels::FlopCounter counter(backend);
    run.step();
    if (step == 0) flops = counter.flops();  // later a graph may run without the backend
  }
  const std::int64_t launches_before = replicas.captured_steps().launches;
  std::vector<WorkloadRun::Times> all;
  all.reserve(static_cast<std::size_t>(options.steps));
  const ProcessMemory before = process_memory();
  for (std::int64_t step = 0; step < options.steps; ++step) all.push_back(run.step());
  const ProcessMemory after = process_memory();
  const auto new_page_faults = static_cast<double>(after.page_faults - before.page_faults);
  train::Figures figures;
  for (const WorkloadRun::Times& times : all) {
    figures.add("step", times.step_ms);
    figures.add("exposed", times.exposed_comm_ms);
  }
  figures.add("peak", static_cast<double>(after.peak_bytes));
  figures.add("page faults", new_page_faults / static_cast<double>(options.steps));
  figures.add("device", static_cast<double>(replicas.device_bytes()));
  figures.take_max(world);
  StepResult result{.step_ms = figures["step"],
                    .exposed_comm_ms = figures["exposed"],
                    .median_ms = figures.median("step"),
                    .exposed_median_ms = figures.median("exposed"),
                    .peak_bytes = figures.median("peak"),
                    .page_faults = figures.median("page faults"),
                    .device_bytes = figures.median("device"),
                    .shards = replicas.shard_map().block(0).count,
                    .micro_batches = replicas.options().micro_batches,
                    .accumulation_buffers = replicas.accumulation_buffers(),
                    .at_once = replicas.shards_at_once()};
  result.samples_per_second = static_cast<double>(run.config().train.global_batch) * 1e3 / result.median_ms;
  result.tflops = 1e-9 * flops / result.median_ms;
  if (backend.device() == Device::cpu()) return result;

  const ddp::CapturedSteps& captured = replicas.captured_steps();
  result.captured = captured.launches - launches_before == options.steps;
  result.launched = result.captured ? "launched as CUDA graphs"
                                    : "launched without CUDA graphs" +
                                          (captured.refused.empty() ? "" : ": " + captured.refused);
  if (options.compute == DType::bfloat16 && computes_only_the_model(run.config(), world)) {
    if (const auto peak = kernels::bf16_tflops_of(kernels::name_of(backend.device())))
      result.mfu = result.tflops / *peak;
  }
  return result;
}

nlohmann::json json_of(const StepResult& result, const StepOptions& options, const std::string& precision,
                       const std::string& device, int ranks) {
  const bool on_gpu = !result.launched.empty();
  std::vector<double> sorted = result.step_ms;
  std::ranges::sort(sorted);
  const std::size_t quarter = sorted.size() / 4;
  nlohmann::json document{{"model", options.workload},
                          {"precision", precision},
                          {"device", device},
                          {"ranks", ranks},
                          {"shards", result.shards},
                          {"shards_at_once", result.at_once.shards},
                          {"micro_batches", result.micro_batches},
                          {"set", options.overrides},
                          {"step_ms", result.median_ms},
                          {"step_ms_quartiles", {sorted[quarter], sorted[sorted.size() - 1 - quarter]}},
                          {"samples_per_second", result.samples_per_second},
                          {"exposed_comm_ms", result.exposed_median_ms},
                          {"tflops", result.tflops},
                          {on_gpu ? "peak_host_memory_bytes" : "peak_memory_bytes", result.peak_bytes},
                          {"page_faults", result.page_faults}};
  if (on_gpu) {
    document["peak_device_memory_bytes"] = result.device_bytes;
    document["graph"] = result.captured;
    if (result.mfu) document["mfu"] = *result.mfu;
  }
  return document;
}

void print_text(const StepResult& result, const StepOptions& options, const std::string& precision,
                const std::string& device, int ranks) {
  const bool on_gpu = !result.launched.empty();
  fmt::print("{} {} on {}, {}: {:.1f} ms per step, {:.0f} samples/s, {:.2f} ms of exposed communication\n",
             options.workload, precision, pluralized(ranks, "rank"), device, result.median_ms,
             result.samples_per_second, result.exposed_median_ms);
  fmt::print(
      "{:.3g} TFLOP/s per rank{}; shards per rank: {} ({} at once{}), micro-batches per shard: {}, "
      "accumulation buffers: {}\n",
      result.tflops,
      result.mfu ? fmt::format(", {:.1f} % of the GPU's {:.0f} (MFU)", 100 * *result.mfu,
                               result.tflops / *result.mfu)
                 : "",
      result.shards, result.at_once.shards,
      result.at_once.refused.empty() ? "" : ": " + result.at_once.refused, result.micro_batches,
      result.accumulation_buffers);
  fmt::print("peak {}memory {:.0f} MiB per rank, {:.1f} page faults per step\n", on_gpu ? "host " : "",
             result.peak_bytes / bytes_per_mib, result.page_faults);
  if (on_gpu)
    fmt::print("GPU memory {:.0f} MiB per rank; steps {}\n", result.device_bytes / bytes_per_mib,
               result.launched);
}

/// The operations of one step of this rank: means over steps. Time outside operations (tape, waits for sums,
/// bookkeeping of the optimizer) is the rest of step_ms.
struct StepProfile {
  double step_ms = 0, exposed_comm_ms = 0;
  std::vector<OperationFigures> operations = {};  ///< of one step, longest first
  kernels::Ceilings ceilings = {};
  double products_ms = 0, others_ms = 0;  ///< sums over operations
  bool on_gpu = false;
};

double gflops(const OperationFigures& operation) { return 1e-6 * operation.flops / operation.ms; }
double gb_s(const OperationFigures& operation) { return 1e-6 * operation.bytes / operation.ms; }

/// Collective.
StepProfile measure_operations(Session& session, const StepOptions& options) {
  kernels::Profile profile;
  std::optional<kernels::Profiler> profiler(std::in_place, session.backend(), profile);
  WorkloadRun run = workload_run(session, options);
  for (std::int64_t step = 0; step < train::warm_up_steps; ++step) run.step();

  StepProfile found{.on_gpu = session.backend().device() != Device::cpu()};
  profile.clear();
  const auto steps = static_cast<double>(options.steps);
  const auto some_steps = [&](std::int64_t count) {
    for (std::int64_t step = 0; step < count; ++step) {
      const WorkloadRun::Times times = run.step();
      found.step_ms += times.step_ms / steps;
      found.exposed_comm_ms += times.exposed_comm_ms / steps;
    }
  };
  // Ceilings are measured between two halves of the steps, so that both see the same load on the node.
  some_steps(options.steps / 2);
  profiler.reset();
  found.ceilings = kernels::measure_ceilings(session.backend(), options.compute);
  profiler.emplace(session.backend(), profile);
  some_steps(options.steps - options.steps / 2);

  found.operations = profile.operations();
  for (OperationFigures& operation : found.operations) {
    operation.ms /= steps;
    operation.flops /= steps;
    operation.bytes /= steps;
    operation.calls /= options.steps;
    (operation.flops > 0 ? found.products_ms : found.others_ms) += operation.ms;
  }
  return found;
}

void print_table(const StepProfile& profile, const std::string& title) {
  const kernels::Ceilings& ceilings = profile.ceilings;
  const auto percent = [&](double ms) { return 100 * ms / profile.step_ms; };
  fmt::print("{}", title);
  fmt::print("ceilings of this node: {:.1f} GFLOP/s (product of {} x {}), {:.1f} GB/s (copy of {} MiB)\n\n",
             ceilings.gflops, ceilings.product_rows, ceilings.product_rows, ceilings.gb_s,
             ceilings.copied_bytes >> 20);
  fmt::print("{:<56}{:>6}{:>9}{:>8}{:>9}{:>6}{:>8}{:>6}\n", "operation", "calls", "ms", "share", "GFLOP/s",
             "peak", "GB/s", "peak");
  for (const OperationFigures& operation : profile.operations) {
    fmt::print("{:<56}{:>6}{:>9.2f}{:>7.1f}%", operation.name, operation.calls, operation.ms,
               percent(operation.ms));
    if (operation.flops > 0) {
      fmt::print("{:>9.1f}{:>5.0f}%", gflops(operation), 100 * gflops(operation) / ceilings.gflops);
    } else {
      fmt::print("{:>15}", "");
    }
    fmt::print("{:>8.1f}{:>5.0f}%\n", gb_s(operation), 100 * gb_s(operation) / ceilings.gb_s);
  }
  const auto sum = [&](const char* what, double ms) {
    fmt::print("{:<62}{:>9.2f}{:>7.1f}%\n", what, ms, percent(ms));
  };
  fmt::print("\n");
  sum("matrix products", profile.products_ms);
  sum("all other operations", profile.others_ms);
  sum("outside operations", profile.step_ms - profile.products_ms - profile.others_ms);
  sum("  exposed communication", profile.exposed_comm_ms);
  const auto any = [&](const auto& property) { return std::ranges::any_of(profile.operations, property); };
  if (any([&](const OperationFigures& operation) { return gflops(operation) > 1.25 * ceilings.gflops; }))
    fmt::print(
        "\nConvolutions above 100% use Winograd's algorithm: it needs a quarter of the arithmetic that is "
        "counted.\n");
  if (any([](const OperationFigures& operation) {
        return operation.name.find(", with ") != std::string::npos;
      }))
    fmt::print("\nMatrix products include fused activations, their derivatives, and sums for biases.\n");
}

nlohmann::json json_of(const StepProfile& profile, const StepOptions& options, int ranks,
                       const std::string& precision) {
  nlohmann::json operations = nlohmann::json::array();
  for (const OperationFigures& operation : profile.operations) {
    operations.push_back({{"name", operation.name},
                          {"calls", operation.calls},
                          {"ms", operation.ms},
                          {"gb_s", gb_s(operation)}});
    if (operation.flops > 0) operations.back()["gflops"] = gflops(operation);
  }
  return {{"model", options.workload},
          {"precision", precision},
          {"ranks", ranks},
          {"steps", options.steps},
          {"step_ms", profile.step_ms},
          {"exposed_comm_ms", profile.exposed_comm_ms},
          {"products_ms", profile.products_ms},
          {"other_operations_ms", profile.others_ms},
          {"ceiling_gflops", profile.ceilings.gflops},
          {"ceiling_gb_s", profile.ceilings.gb_s},
          {"operations", std::move(operations)}};
}

/// Prints the operations of a step of rank 0. Collective.
void profile_steps(Session& session, const StepOptions& options, const ResultOutput& output) {
  const StepProfile found = measure_operations(session, options);
  const std::string precision = train::precision_text(options.compute, session.backend());
  const int ranks = session.world().size();
  const auto print_text = [&] {
    print_table(found, fmt::format("{} {} on {}, rank 0: {:.1f} ms per step (mean of {}{})\n",
                                   options.workload, precision, pluralized(ranks, "rank"), found.step_ms,
                                   options.steps, found.on_gpu ? ", without CUDA graphs" : ""));
  };
  show(output, session, json_of(found, options, ranks, precision), print_text,
       {"Operations of " + options.workload,
        fmt::format("The operations of a step of rank 0, {}: means over {}. Ceilings of this node: {:.1f} "
                    "GFLOP/s (matrix product), {:.1f} GB/s (copy).",
                    precision, pluralized(options.steps, "step"), found.ceilings.gflops, found.ceilings.gb_s),
        {{"step", fmt::format("{:.1f} ms", found.step_ms)},
         {"matrix products", fmt::format("{:.1f} ms", found.products_ms)},
         {"all other operations", fmt::format("{:.1f} ms", found.others_ms)},
         {"exposed communication", fmt::format("{:.2f} ms", found.exposed_comm_ms)}}});
}

}  // namespace

ExitCode bench_step(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench step [--workload NAME | --config CONFIG] [OPTIONS]",
                    "Times training steps on all ranks: those of a standard workload with synthetic\n"
                    "data, or of a run with the first batch of its data. Times are medians over steps\n"
                    "of the slowest rank.\nWorkloads: " +
                        workload_names() + ".");
  add_workload(options);
  options.add()("config", po::value<std::string>(), "measure the run of this file instead");
  options.add()("shards", po::value<int>()->default_value(1), "workload: shards per rank");
  options.add()("micro-batches", po::value<int>()->default_value(1), "workload: micro-batches per shard");
  options.add()("graph", po::value<std::string>()->default_value("auto"),
                "workload: CUDA graphs: auto, true or false");
  options.add()("profile", "time each operation of a step of rank 0");
  add_device(options);
  options.add()("set", po::value<Arguments>()->composing(), "override SECTION.KEY=VALUE; may be repeated");
  options.add()("precision", po::value<std::string>()->default_value("fp32"), "fp32 or bf16");
  options.add()("bf16-fallback", po::value<std::string>()->default_value("refuse"),
                "if bf16 is slower than fp32 here: refuse, fp32 (use fp32) or convert (use bf16)");
  add_output(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const bool profile = values.count("profile") > 0;
  const ResultOutput output(values, session);
  StepOptions how{.workload = values["workload"].as<std::string>(),
                  .steps = values["steps"].as<std::int64_t>(),
                  .shards = values["shards"].as<int>(),
                  .micro_batches = values["micro-batches"].as<int>(),
                  .graph = graph_of(values["graph"].as<std::string>())};
  if (values.count("set")) how.overrides = values["set"].as<Arguments>();
  if (const auto config = option_text(values, "config")) {
    for (const char* const option : {"workload", "shards", "micro-batches", "graph"}) {
      if (!values[option].defaulted())
        throw UsageError("bench step: --{} applies to workloads only; with --config, use --set", option);
    }
    comm::run_on_all(session.world(), [&] {
      how.workload = *config;
      how.config = train::read_config(*config, how.overrides, program.registries);
    });
  }
  const train::TrainConfig of_run = how.config ? how.config->train : train::TrainConfig{};
  session.use_device(option_text(values, "device").value_or(of_run.device),
                     {.threads = std::max(1, of_run.threads), .reproducible = of_run.reproducible});
  const auto option_or = [&](const char* option, const std::string& run_value) {
    return how.config && values[option].defaulted() ? run_value : values[option].as<std::string>();
  };
  how.compute = train::choose_session_precision(session, option_or("precision", of_run.precision),
                                                option_or("bf16-fallback", of_run.bf16_fallback));
  train::check_steps(how.steps, "step");
  if (how.config) train::resolve_threads(*how.config, session);
  if (how.graph == ddp::Graph::always && session.backend().device() == Device::cpu())
    throw UsageError("bench step: --graph true: CUDA graphs need a GPU; omit --graph");
  if (profile) {
    if (how.graph == ddp::Graph::always)
      throw UsageError("bench step: --profile cannot time the operations of a CUDA graph; omit --graph true");
    how.graph = ddp::Graph::never;
    if (how.config) how.config->ddp.graph = ddp::Graph::never;
    profile_steps(session, how, output);
    return ExitCode::done;
  }
  const StepResult result = time_steps(session, how);
  const std::string precision = train::precision_text(how.compute, session.backend());
  const std::string device = kernels::name_of(session.backend().device());
  const int ranks = session.world().size();
  show(
      output, session, json_of(result, how, precision, device, ranks),
      [&] { print_text(result, how, precision, device, ranks); },
      {"Training steps: " + how.workload,
       fmt::format("{} on {}. Times are medians over steps of the slowest rank. {}", precision, device,
                   result.launched),
       {{"step", fmt::format("{:.1f} ms", result.median_ms)},
        {"samples/s", report::number(result.samples_per_second)},
        {"exposed communication", fmt::format("{:.2f} ms", result.exposed_median_ms)}}},
      steps_of(result));
  return ExitCode::done;
}

}  // namespace lockstep::cli
