// lockstep bench step: whole training steps of a standard workload, and what they are made of.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/resources.h"
#include "base/text.h"
#include "cli/bench_step.h"
#include "cli/result_page.h"
#include "kernels/gpus.h"
#include "kernels/profile.h"
#include "lockstep/comm/agreement.h"
#include "report/chart.h"
#include "train/device.h"
#include "train/resume.h"

namespace lockstep::cli {
namespace {

using train::WorkloadRun;

ddp::Graph graph_of(const std::string& word) {
  try {
    return option::named<ddp::Graph>(word);
  } catch (const UsageError&) {
    throw UsageError("--graph {}: must be auto, true or false; see lockstep bench step --help", word);
  }
}

/// What time_steps() found, of the slowest rank.
struct StepResult {
  std::vector<double> step_ms, exposed_comm_ms;  ///< of each step
  double median_ms = 0, samples_per_second = 0, exposed_median_ms = 0, peak_bytes = 0, page_faults = 0;
  double device_bytes = 0;            ///< of a GPU's memory, at most: tensors, graphs, accumulation buffers
  double tflops = 0;                  ///< 1e12 a second, of the products of rank 0
  std::optional<double> mfu = {};     ///< of what the GPU's data sheet says
  int shards = 1, micro_batches = 1;  ///< of a rank, at most; of a shard
  int accumulation_buffers = 1;
  std::string launched = {};  ///< on a GPU: how the steps were
  bool captured = false;      ///< as graphs
};

/// Whether all that rank 0's GPU computes is the model's arithmetic, and of this rank alone.
bool computes_only_the_model(const train::Config& config, const comm::HostGroup& world) {
  const bool shares = world.size() > 1 && std::getenv("LOCKSTEP_SHARE_GPU");
  return !shares && config.model.value("recompute") != "true" &&
         !config.optimizer.algorithm.type->traits.undivided;
}

/// Samples a second over ranks, and what as many times the first would be. Nothing of another model,
/// precision or way of launching is drawn.
std::string scaling_of(const StepResult& result, const StepOptions& options, const std::string& precision,
                       const std::string& device, int ranks) {
  std::map<int, double> by_ranks{{ranks, result.samples_per_second}};
  std::string left_out;
  for (const nlohmann::json& other : options.others) {
    try {
      // The shards of a run are those of all ranks; a workload has as many on each.
      const bool same_shards = options.config || other.value("shards", result.shards) == result.shards;
      if (other.at("model") == options.workload && other.at("precision") == precision && same_shards &&
          other.value("device", device) == device &&
          other.value("set", options.overrides) == options.overrides &&
          other.value("micro_batches", result.micro_batches) == result.micro_batches &&
          other.value("graph", result.captured) == result.captured)
        by_ranks.try_emplace(other.at("ranks").get<int>(), other.at("samples_per_second").get<double>());
      else
        left_out =
            "Results of another model, device, precision, number of shards or micro-batches, with other keys "
            "of "
            "--set or other use of CUDA graphs are left out.";
    } catch (const nlohmann::json::exception& error) {
      throw DataError("--with: is not what bench step --json prints: {}", error.what());
    }
  }
  if (by_ranks.size() < 2) return report::note(left_out);
  report::Chart chart{
      .title = "Throughput", .unit = "samples/s", .note = left_out, .wide = true, .dots = true};
  chart.x = {.name = "ranks", .kind = report::XAxis::Kind::counts};
  report::Curve measured{.label = "measured", .style = "c0", .run = "", .points = {}};
  report::Curve ideal{
      .label = "each rank as fast as at the first point", .style = "c6 dashed", .run = "", .points = {}};
  report::Table table({"ranks", "samples/s", "efficiency"});
  const double each = by_ranks.begin()->second / by_ranks.begin()->first;
  for (const auto& [count, speed] : by_ranks) {
    measured.points.x.push_back(count);
    measured.points.y.push_back(speed);
    ideal.points.x.push_back(count);
    ideal.points.y.push_back(each * count);
    table.add({report::cell(count), report::cell(speed),
               report::cell(speed / (each * count), fmt::format("{:.1f} %", 100 * speed / (each * count)))});
  }
  chart.curves = {std::move(ideal), std::move(measured)};
  return "<div class=\"charts\">" + to_html(chart) + "</div>" + table.to_html();
}

report::Page page_of(const StepResult& result, const StepOptions& options, const std::string& precision,
                     const std::string& device, const Session& session) {
  report::Page page{.title = "Training steps: " + options.workload, .lead = "", .body = "", .footer = ""};
  page.lead = fmt::format("{} on {}. Times are those of the slowest rank in each step; facts are medians.",
                          precision, device);
  std::vector<std::pair<std::string, std::string>> facts{
      {"ranks", ranks_and_nodes(session.world())},
      {"shards of a rank", std::to_string(result.shards)},
      {"micro-batches of a shard", std::to_string(result.micro_batches)},
      {"step", fmt::format("{:.1f} ms", result.median_ms)},
      {"samples/s", report::number(result.samples_per_second)},
      {"exposed communication", fmt::format("{:.2f} ms", result.exposed_median_ms)},
      {"TFLOP/s of a rank", report::number(result.tflops)},
      {"peak memory of a rank", report::bytes_text(result.peak_bytes)},
      {"page faults a step", fmt::format("{:.1f}", result.page_faults)}};
  if (result.mfu) facts.emplace_back("MFU", fmt::format("{:.1f} %", 100 * *result.mfu));
  if (!result.launched.empty()) {
    facts.emplace_back("GPU memory of a rank", report::bytes_text(result.device_bytes));
    facts.emplace_back("steps", result.launched);
  }
  page.body = report::facts(facts);
  page.body +=
      report::section("Scaling", scaling_of(result, options, precision, device, session.world().size()));
  std::string charts;
  for (const auto& [title, values] : {std::pair{"Step time", &result.step_ms},
                                      std::pair{"Exposed communication", &result.exposed_comm_ms}}) {
    report::Curve curve{.label = "slowest rank", .style = "c0", .run = "", .points = {}};
    for (std::size_t step = 0; step < values->size(); ++step) {
      curve.points.x.push_back(static_cast<double>(step + 1));
      curve.points.y.push_back((*values)[step]);
    }
    curve.points = report::reduced(curve.points, 2'000);
    report::Chart chart{.title = title, .unit = "ms", .note = "", .linear = true};
    chart.dots = curve.points.x.size() <= 60;
    chart.x.name = "measured step";
    chart.curves = {std::move(curve)};
    charts += to_html(chart);
  }
  page.body +=
      report::section("Steps", "<div class=\"charts\">" + charts + "</div>") + environment_section(session);
  return page;
}

/// Times steps, of the slowest rank in each. Collective.
StepResult time_steps(Session& session, const StepOptions& options) {
  comm::HostGroup& world = session.world();
  kernels::Backend& backend = session.backend();
  WorkloadRun run = workload_run(session, options);
  const ddp::DataParallel& replicas = run.replicas();
  double flops = 0;              // of a step
  std::size_t device_bytes = 0;  // at most: a capture gives back what it does not use
  for (std::int64_t step = 0; step < train::warm_up_steps; ++step) {
    const kernels::FlopCounter counter(backend);
    run.step();
    if (step == 0) flops = counter.flops();  // a graph asks the backend for nothing
    device_bytes = std::max(device_bytes, backend.reserved_bytes());
  }
  const std::int64_t launches_before = replicas.captured_steps().launches;
  std::vector<double> all_step_ms, all_exposed_ms;
  all_step_ms.reserve(static_cast<std::size_t>(options.steps));
  all_exposed_ms.reserve(static_cast<std::size_t>(options.steps));
  const ProcessMemory before = process_memory();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const WorkloadRun::Times times = run.step();
    all_step_ms.push_back(times.step_ms);
    all_exposed_ms.push_back(times.exposed_comm_ms);
  }
  const ProcessMemory after = process_memory();
  device_bytes =
      std::max(device_bytes, backend.reserved_bytes()) +
      replicas.accumulation_buffer_bytes() * static_cast<std::size_t>(replicas.accumulation_buffers());
  const auto new_page_faults = static_cast<double>(after.page_faults - before.page_faults);
  const std::vector<double> memory = train::greatest_of_ranks(
      world, {static_cast<double>(after.peak_bytes), new_page_faults / static_cast<double>(options.steps),
              static_cast<double>(device_bytes)});
  StepResult result{.step_ms = train::greatest_of_ranks(world, all_step_ms),
                    .exposed_comm_ms = train::greatest_of_ranks(world, all_exposed_ms)};
  result.median_ms = median(result.step_ms);
  result.exposed_median_ms = median(result.exposed_comm_ms);
  result.samples_per_second = static_cast<double>(run.config().train.global_batch) * 1e3 / result.median_ms;
  result.peak_bytes = memory[0];
  result.page_faults = memory[1];
  result.device_bytes = memory[2];
  result.tflops = 1e-9 * flops / result.median_ms;
  result.shards = replicas.shard_map().block(0).count;
  result.micro_batches = replicas.options().micro_batches;
  result.accumulation_buffers = replicas.accumulation_buffers();
  if (backend.device() == Device::cpu()) return result;

  const ddp::CapturedSteps& captured = replicas.captured_steps();
  result.captured = captured.launches - launches_before == options.steps;
  result.launched = result.captured
                        ? "launched as a CUDA graph"
                        : "without a CUDA graph" + (captured.refused.empty() ? "" : ": " + captured.refused);
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
  fmt::print("{} {} on {}, {}: {:.1f} ms a step, {:.0f} samples/s, {:.2f} ms of communication exposed\n",
             options.workload, precision, pluralized(ranks, "rank"), device, result.median_ms,
             result.samples_per_second, result.exposed_median_ms);
  fmt::print(
      "{:.3g} TFLOP/s a rank{}; shards a rank: {}, micro-batches of each: {}, accumulation buffers: {}\n",
      result.tflops,
      result.mfu ? fmt::format(", {:.1f} % of the GPU's {:.0f} (MFU)", 100 * *result.mfu,
                               result.tflops / *result.mfu)
                 : "",
      result.shards, result.micro_batches, result.accumulation_buffers);
  fmt::print("peak {}memory {:.0f} MiB a rank, {:.1f} page faults a step\n", on_gpu ? "host " : "",
             result.peak_bytes / bytes_per_mib, result.page_faults);
  if (on_gpu)
    fmt::print("GPU memory {:.0f} MiB a rank; steps {}\n", result.device_bytes / bytes_per_mib,
               result.launched);
}

}  // namespace

WorkloadRun workload_run(Session& session, const StepOptions& options) {
  if (options.config) return {*options.config, session, options.compute};
  const train::StandardWorkload& workload = train::workload_named(options.workload);
  train::samples_of_shard(workload, options.shards, options.micro_batches);  // before a large model is made
  for (const std::string& text : options.overrides) {
    const std::string section = text.substr(0, text.find('.'));
    if (section != "model" && section != "diffusion" && section != "optimizer")
      throw UsageError("--set {}: a workload has only the keys of model, diffusion and optimizer", text);
  }
  return {workload,
          session.transport(),
          session.backend(),
          {.micro_batches = options.micro_batches, .compute = options.compute, .graph = options.graph},
          options.shards,
          options.overrides};
}

ExitCode bench_step(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench step [--workload NAME | --config CONFIG] [OPTIONS]",
                    "Times whole training steps on all ranks: of a standard workload on made-up data,\n"
                    "or of a run on the first batch of its data.\n"
                    "Every time is a median over steps, of the slowest rank in each.\nWorkloads: " +
                        workload_names() + ".");
  add_workload(options);
  options.add()("config", po::value<std::string>(), "measure this run, with its model and task");
  options.add()("shards", po::value<int>()->default_value(1), "shards of a rank's batch of a workload");
  options.add()("micro-batches", po::value<int>()->default_value(1), "micro-batches of such a shard");
  options.add()("graph", po::value<std::string>()->default_value("auto"),
                "steps as CUDA graphs: auto, true or false");
  options.add()("profile", "what a step of rank 0 is made of, by operation");
  add_device(options);
  options.add()("set", po::value<Arguments>()->composing(), "a key of CONFIG, or of the workload");
  options.add()("precision", po::value<std::string>()->default_value("fp32"), "fp32 or bf16");
  options.add()("bf16-fallback", po::value<std::string>()->default_value("refuse"),
                "where bf16 is slower: refuse, fp32 or convert");
  options.add()("json", "print one JSON document");
  add_html(options);
  add_with(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const bool profile = values.count("profile") > 0;
  const ResultPage page(values, session, values.count("json") > 0);
  StepOptions how{
      .workload = values["workload"].as<std::string>(),
      .steps = values["steps"].as<std::int64_t>(),
      .shards = values["shards"].as<int>(),
      .micro_batches = values["micro-batches"].as<int>(),
      .graph = graph_of(values["graph"].as<std::string>()),
      .json = values.count("json") > 0,
      .page = &page,
      .others = results_of_others(values, session, {"model", "precision", "ranks", "samples_per_second"})};
  if (values.count("set")) how.overrides = values["set"].as<Arguments>();
  if (const auto config = given(values, "config")) {
    for (const char* const option : {"workload", "shards", "micro-batches", "graph"}) {
      if (!values[option].defaulted())
        throw UsageError("bench step: --{} is of workloads, not of --config, whose keys are given by --set",
                         option);
    }
    comm::run_on_all(session.world(), [&] {
      how.workload = *config;
      how.config = train::read_config(*config, how.overrides, program.registries);
    });
  }
  const train::TrainConfig of_run = how.config ? how.config->train : train::TrainConfig{};
  session.use_device(given(values, "device").value_or(of_run.device),
                     {.threads = std::max(1, of_run.threads), .reproducible = of_run.reproducible});
  const auto given_or = [&](const char* option, const std::string& run) {
    return how.config && values[option].defaulted() ? run : values[option].as<std::string>();
  };
  how.compute = train::choose_session_precision(session, given_or("precision", of_run.precision),
                                                given_or("bf16-fallback", of_run.bf16_fallback));
  train::check_steps(how.steps, "step");
  if (how.config) train::resolve_threads(*how.config, session);
  if (how.graph == ddp::Graph::always && session.backend().device() == Device::cpu())
    throw UsageError("bench step: --graph true: only a GPU's steps can be captured; leave it out");
  if (profile) {
    if (how.graph == ddp::Graph::always)
      throw UsageError(
          "bench step: --profile times operations, which a graph does not have: leave out --graph true");
    how.graph = ddp::Graph::never;
    if (how.config) how.config->ddp.graph = ddp::Graph::never;
    profile_steps(session, how);
    return ExitCode::done;
  }
  const StepResult result = time_steps(session, how);
  const std::string precision = train::precision_text(how.compute, session.backend());
  const std::string device = kernels::name_of(session.backend().device());
  const int ranks = session.world().size();
  if (session.world().rank() == 0) {
    if (how.json) {
      print_json(json_of(result, how, precision, device, ranks));
    } else {
      print_text(result, how, precision, device, ranks);
    }
  }
  page.write([&] { return page_of(result, how, precision, device, session); });
  return ExitCode::done;
}

}  // namespace lockstep::cli
