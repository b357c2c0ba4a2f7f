// lockstep bench step: whole training steps of a standard workload, and what they are made of.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/resources.h"
#include "base/text.h"
#include "cli/bench.h"
#include "cli/result_page.h"
#include "kernels/gpus.h"
#include "kernels/profile.h"
#include "lockstep/comm/agreement.h"
#include "report/chart.h"
#include "train/device.h"

namespace lockstep::cli {
namespace {

using kernels::OperationFigures;
using train::WorkloadRun;

struct StepOptions {
  std::string workload;                                ///< its name, or the configuration file of a run
  std::optional<train::Config> config = std::nullopt;  ///< of a run
  std::int64_t steps = 0;                              ///< measured
  DType compute = DType::float32;
  int shards = 1, micro_batches = 1;  ///< of a rank's batch; of a shard
  ddp::Graph graph = ddp::Graph::automatic;
  Arguments overrides = {};
  bool json = false;
  const ResultPage* page = nullptr;
  std::vector<nlohmann::json> others = {};  ///< results on other numbers of ranks
};

WorkloadRun workload_run(Session& session, const StepOptions& options) {
  if (options.config) return {*options.config, session, options.compute};
  for (const std::string& text : options.overrides) {
    const std::string section = text.substr(0, text.find('.'));
    if (section != "model" && section != "diffusion" && section != "optimizer")
      throw UsageError("--set {}: a workload has only the keys of model, diffusion and optimizer", text);
  }
  return {train::workload_named(options.workload),
          session.transport(),
          session.backend(),
          {.micro_batches = options.micro_batches, .compute = options.compute, .graph = options.graph},
          options.shards,
          options.overrides};
}

ddp::Graph graph_of(const std::string& word) {
  if (word != "auto" && word != "true" && word != "false")
    throw UsageError("--graph {}: must be auto, true or false; see lockstep bench step --help", word);
  return ddp::graph_named(word);
}

/// While it lives, it adds up the arithmetic of all products of a backend.
class FlopCounter final : public kernels::Observer {
 public:
  explicit FlopCounter(kernels::Backend& backend) : backend_(backend), before_(backend.observe(this)) {}
  ~FlopCounter() override { backend_.observe(before_); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  void begin() override {}
  void end(std::string_view, const ops::Cost& cost, bool) override { flops_ += cost.flops; }
  double flops() const { return flops_; }

 private:
  kernels::Backend& backend_;
  kernels::Observer* const before_;
  double flops_ = 0;
};

/// The greatest bf16 TFLOP/s of a GPU by its name, without sparsity: NVIDIA's data sheets. None of one that
/// is not known, and of a part of one (MIG).
std::optional<double> bf16_tflops_of(const std::string& gpu) {
  struct Peak {
    std::string_view words;
    double tflops;
  };
  constexpr std::array peaks{Peak{"GB200", 2500},    Peak{"B200", 2250},  Peak{"GH200", 989},
                             Peak{"H200 NVL", 836},  Peak{"H200", 989},   Peak{"H100 NVL", 835},
                             Peak{"H100 PCIe", 756}, Peak{"H100", 989},   Peak{"A100", 312},
                             Peak{"L40S", 362},      Peak{"L40", 181},    Peak{"L4", 121},
                             Peak{"RTX 4090", 165},  Peak{"RTX 3090", 71}};
  const auto has = [spaced = " " + gpu + " "](std::string_view words) {  // A100-SXM4-80GB is a word and more
    const std::size_t at = spaced.find(fmt::format(" {}", words));
    return at != spaced.npos &&
           std::string_view(" -").find(spaced[at + 1 + words.size()]) != std::string_view::npos;
  };
  const auto* const found = std::ranges::find_if(peaks, has, &Peak::words);
  return found == peaks.end() || has("MIG") ? std::nullopt : std::optional(found->tflops);
}

/// What time_steps() found, of the slowest rank.
struct StepResult {
  std::vector<double> step_ms, exposed_comm_ms;  ///< of each step
  double median_ms = 0, samples_per_second = 0, exposed_median_ms = 0, peak_bytes = 0, page_faults = 0;
  double device_bytes = 0;         ///< of a GPU's memory, at most
  double tflops = 0;               ///< 1e12 a second, of the products of a rank
  std::optional<double> mfu = {};  ///< of what the GPU's data sheet says
  bool captured = false;           ///< the steps were launched as graphs
};

/// Samples a second over ranks, and what as many times the first would be. Nothing of another model or
/// precision is drawn.
std::string scaling_of(const StepResult& result, const StepOptions& options, const std::string& precision,
                       int ranks) {
  std::map<int, double> by_ranks{{ranks, result.samples_per_second}};
  std::string left_out;
  for (const nlohmann::json& other : options.others) {
    try {
      if (other.at("model").get<std::string>() == options.workload &&
          other.at("precision").get<std::string>() == precision)
        by_ranks.try_emplace(other.at("ranks").get<int>(), other.at("samples_per_second").get<double>());
      else
        left_out = "Results of another model or precision are left out.";
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
  page.body = report::facts(std::vector<std::pair<std::string, std::string>>{
      {"ranks", ranks_and_nodes(session.world())},
      {"step", fmt::format("{:.1f} ms", result.median_ms)},
      {"samples/s", report::number(result.samples_per_second)},
      {"exposed communication", fmt::format("{:.2f} ms", result.exposed_median_ms)},
      {"TFLOP/s of a rank", report::number(result.tflops)},
      {"peak memory of a rank", report::bytes_text(result.peak_bytes)},
      {"page faults a step", fmt::format("{:.1f}", result.page_faults)}});
  page.body += report::section("Scaling", scaling_of(result, options, precision, session.world().size()));
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

/// Times steps and prints medians, of the slowest rank in each step. Collective.
void time_steps(Session& session, const StepOptions& options) {
  comm::HostGroup& world = session.world();
  kernels::Backend& backend = session.backend();
  const bool on_cpu = backend.device() == Device::cpu();
  WorkloadRun run = workload_run(session, options);
  double flops = 0;              // of a step
  std::size_t device_bytes = 0;  // at most: a capture gives back what it does not use
  for (std::int64_t step = 0; step < train::warm_up_steps; ++step) {
    FlopCounter counter(backend);
    run.step();
    if (step == 0) flops = counter.flops();  // a graph asks the backend for nothing
    device_bytes = std::max(device_bytes, backend.reserved_bytes());
  }
  const std::int64_t launches_before = run.replicas().captured_steps().launches;
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
  const auto new_page_faults = static_cast<double>(after.page_faults - before.page_faults);
  const std::vector<double> memory = train::greatest_of_ranks(
      world, {static_cast<double>(after.peak_bytes), new_page_faults / static_cast<double>(options.steps),
              static_cast<double>(std::max(device_bytes, backend.reserved_bytes()))});
  const double peak_bytes = memory[0], page_faults = memory[1];
  StepResult result{.step_ms = train::greatest_of_ranks(world, all_step_ms),
                    .exposed_comm_ms = train::greatest_of_ranks(world, all_exposed_ms)};
  const double step_ms = median(result.step_ms), exposed_comm_ms = median(result.exposed_comm_ms);
  const double samples_per_second = static_cast<double>(run.config().train.global_batch) * 1e3 / step_ms;
  result.median_ms = step_ms;
  result.exposed_median_ms = exposed_comm_ms;
  result.samples_per_second = samples_per_second;
  result.peak_bytes = peak_bytes;
  result.page_faults = page_faults;
  result.device_bytes = memory[2];
  result.tflops = 1e-9 * flops / step_ms;

  const std::string precision = train::precision_text(options.compute, backend);
  const std::string device = kernels::name_of(backend.device());
  const ddp::DataParallel& replicas = run.replicas();
  result.captured = replicas.captured_steps().launches - launches_before == options.steps;
  const bool recomputes =
      run.config().model.value("recompute") == "true";  // more than the model's arithmetic
  if (options.compute == DType::bfloat16 && !recomputes) {
    if (const auto peak = bf16_tflops_of(device)) result.mfu = result.tflops / *peak;
  }
  const auto print_result = [&] {
    const int shards = replicas.shard_map().shards() / world.size(),
              micro_batches = replicas.options().micro_batches;
    if (options.json) {
      std::vector<double> sorted = result.step_ms;
      std::ranges::sort(sorted);
      nlohmann::json document{
          {"model", options.workload},
          {"precision", precision},
          {"device", device},
          {"ranks", world.size()},
          {"shards", shards},
          {"micro_batches", micro_batches},
          {"step_ms", step_ms},
          {"step_ms_quartiles", {sorted[sorted.size() / 4], sorted[3 * sorted.size() / 4]}},
          {"samples_per_second", samples_per_second},
          {"exposed_comm_ms", exposed_comm_ms},
          {"tflops", result.tflops},
          {on_cpu ? "peak_memory_bytes" : "peak_host_memory_bytes", peak_bytes},
          {"page_faults", page_faults}};
      if (!on_cpu) {
        document["peak_device_memory_bytes"] = result.device_bytes;
        document["graph"] = result.captured;
        if (result.mfu) document["mfu"] = *result.mfu;
      }
      return print_json(document);
    }
    fmt::print("{} {} on {}, {}: {:.1f} ms a step, {:.0f} samples/s, {:.2f} ms of communication exposed\n",
               options.workload, precision, pluralized(world.size(), "rank"), device, step_ms,
               samples_per_second, exposed_comm_ms);
    fmt::print(
        "{:.3g} TFLOP/s a rank{}; shards a rank: {}, micro-batches of each: {}, accumulation buffers: {}\n",
        result.tflops,
        result.mfu ? fmt::format(", {:.1f} % of the GPU's {:.0f} (MFU)", 100 * *result.mfu,
                                 result.tflops / *result.mfu)
                   : "",
        shards, micro_batches, replicas.accumulation_buffers());
    fmt::print("peak {}memory {:.0f} MiB a rank, {:.1f} page faults a step\n", on_cpu ? "" : "host ",
               peak_bytes / bytes_per_mib, page_faults);
    if (on_cpu) return;
    const std::string& refused = replicas.captured_steps().refused;
    fmt::print("GPU memory {:.0f} MiB a rank; steps {}\n", result.device_bytes / bytes_per_mib,
               result.captured ? "were launched as a CUDA graph"
                               : "without a CUDA graph" + (refused.empty() ? "" : ": " + refused));
  };
  if (world.rank() == 0) print_result();
  options.page->write([&] { return page_of(result, options, precision, device, session); });
}

/// A step of this rank, operation by operation: means over its steps. The tape, waits for sums and the
/// optimizer's bookkeeping are no operations of the backend: they are what is left of step_ms.
struct StepProfile {
  double step_ms = 0, exposed_comm_ms = 0;
  std::vector<OperationFigures> operations = {};  ///< of one step, the longest first
  kernels::Ceilings ceilings = {};
  double products_ms = 0, others_ms = 0;  ///< sums over operations
};

double gflops(const OperationFigures& operation) { return 1e-6 * operation.flops / operation.ms; }
double gb_s(const OperationFigures& operation) { return 1e-6 * operation.bytes / operation.ms; }

/// Collective.
StepProfile profile_steps(Session& session, const StepOptions& options) {
  kernels::Profile profile;
  std::optional<kernels::Profiler> profiler(std::in_place, session.backend(), profile);
  WorkloadRun run = workload_run(session, options);
  for (std::int64_t step = 0; step < train::warm_up_steps; ++step) run.step();

  StepProfile found;
  profile.clear();
  const auto steps = static_cast<double>(options.steps);
  const auto some_steps = [&](std::int64_t count) {
    for (std::int64_t step = 0; step < count; ++step) {
      const WorkloadRun::Times times = run.step();
      found.step_ms += times.step_ms / steps;
      found.exposed_comm_ms += times.exposed_comm_ms / steps;
    }
  };
  // Ceilings are measured in the middle of the steps, so that both see the same load on the node.
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
  fmt::print("this node meanwhile: {:.1f} GFLOP/s (a product of {} x {}), {:.1f} GB/s (a copy of {} MiB)\n\n",
             ceilings.gflops, ceilings.product_rows, ceilings.product_rows, ceilings.gb_s,
             ceilings.copied_bytes >> 20);
  fmt::print("{:<56}{:>6}{:>9}{:>8}{:>9}{:>6}{:>8}{:>6}\n", "operation", "calls", "ms", "share", "GFLOP/s",
             "of it", "GB/s", "of it");
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
  sum("products", profile.products_ms);
  sum("all other operations", profile.others_ms);
  sum("outside operations", profile.step_ms - profile.products_ms - profile.others_ms);
  sum("  of which exposed communication", profile.exposed_comm_ms);
  const auto any = [&](const auto& property) { return std::ranges::any_of(profile.operations, property); };
  if (any([&](const OperationFigures& operation) { return gflops(operation) > 1.25 * ceilings.gflops; }))
    fmt::print(
        "\nConvolutions above 100% use Winograd's products, which take a quarter of the arithmetic that is "
        "counted.\n");
  if (any([](const OperationFigures& operation) {
        return operation.name.starts_with("linear_activation") ||
               operation.name.starts_with("linear_backward_weight");
      }))
    fmt::print("\nProducts include their activations, the slopes of these, and the sums for biases.\n");
}

report::Page page_of(const StepProfile& profile, const StepOptions& options, const std::string& precision,
                     const Session& session) {
  const kernels::Ceilings& ceilings = profile.ceilings;
  report::Page page{.title = "A step of " + options.workload, .lead = "", .body = "", .footer = ""};
  page.lead = fmt::format(
      "What a step of rank 0 is made of, {}: means over {}. This node meanwhile: {:.1f} GFLOP/s (a product "
      "of {} x {}), {:.1f} GB/s (a copy of {} MiB).",
      precision, pluralized(options.steps, "step"), ceilings.gflops, ceilings.product_rows,
      ceilings.product_rows, ceilings.gb_s, ceilings.copied_bytes >> 20);
  const double outside_ms = profile.step_ms - profile.products_ms - profile.others_ms;
  page.body = report::facts(std::vector<std::pair<std::string, std::string>>{
      {"ranks", ranks_and_nodes(session.world())},
      {"step", fmt::format("{:.1f} ms", profile.step_ms)},
      {"products", fmt::format("{:.1f} ms", profile.products_ms)},
      {"all other operations", fmt::format("{:.1f} ms", profile.others_ms)},
      {"outside operations", fmt::format("{:.1f} ms", outside_ms)},
      {"exposed communication", fmt::format("{:.2f} ms", profile.exposed_comm_ms)}});
  constexpr std::size_t most_bars = 30;
  report::Timeline bars{
      .title = "Operations", .unit = "ms a step", .axis = "ms a step", .rows = {}, .spans = {}};
  report::Table table({"operation", "calls", "ms", "share, %", "GFLOP/s", "GB/s"});
  for (const OperationFigures& operation : profile.operations) {
    const bool is_product = operation.flops > 0;
    if (bars.rows.size() < most_bars) {
      bars.spans.push_back({.row = bars.rows.size(),
                            .kind = is_product ? "" : "comm",
                            .name = is_product ? "products" : "all other operations",
                            .start = 0,
                            .length = operation.ms,
                            .text = fmt::format("{:.2f}", operation.ms)});
      bars.rows.push_back(operation.name);
    }
    table.add({{operation.name},
               report::cell(static_cast<double>(operation.calls)),
               report::cell(operation.ms, fmt::format("{:.2f}", operation.ms)),
               report::cell(100 * operation.ms / profile.step_ms,
                            fmt::format("{:.1f}", 100 * operation.ms / profile.step_ms)),
               report::cell(is_product ? gflops(operation) : 0,
                            is_product ? fmt::format("{:.1f}", gflops(operation)) : "–"),
               report::cell(gb_s(operation), fmt::format("{:.1f}", gb_s(operation)))});
  }
  bars.key = true;
  if (profile.operations.size() > most_bars)
    bars.note = fmt::format("The longest {} of {}.", most_bars, profile.operations.size());
  page.body += report::section("Operations", to_html(bars) + table.to_html()) + environment_section(session);
  return page;
}

void print_profile(const StepProfile& profile, const StepOptions& options, int ranks,
                   const std::string& precision) {
  if (!options.json)
    return print_table(profile,
                       fmt::format("{} {} on {}, rank 0: {:.1f} ms a step (mean of {})\n", options.workload,
                                   precision, pluralized(ranks, "rank"), profile.step_ms, options.steps));
  nlohmann::json operations = nlohmann::json::array();
  for (const OperationFigures& operation : profile.operations) {
    operations.push_back({{"name", operation.name},
                          {"calls", operation.calls},
                          {"ms", operation.ms},
                          {"gb_s", gb_s(operation)}});
    if (operation.flops > 0) operations.back()["gflops"] = gflops(operation);
  }
  print_json({{"model", options.workload},
              {"precision", precision},
              {"ranks", ranks},
              {"steps", options.steps},
              {"step_ms", profile.step_ms},
              {"exposed_comm_ms", profile.exposed_comm_ms},
              {"products_ms", profile.products_ms},
              {"other_operations_ms", profile.others_ms},
              {"ceiling_gflops", profile.ceilings.gflops},
              {"ceiling_gb_s", profile.ceilings.gb_s},
              {"operations", std::move(operations)}});
}

}  // namespace

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
  if (profile) {  // the operations of a graph have no times of their own
    if (how.graph == ddp::Graph::always)
      throw UsageError(
          "bench step: --profile times operations, which a graph does not have: leave out --graph true");
    how.graph = ddp::Graph::never;
    if (how.config) how.config->train.cuda_graph = "false";
    const StepProfile found = profile_steps(session, how);
    const std::string precision = train::precision_text(how.compute, session.backend());
    if (session.world().rank() == 0) print_profile(found, how, session.world().size(), precision);
    page.write([&] { return page_of(found, how, precision, session); });
  } else {
    time_steps(session, how);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
