// lockstep bench step --profile: what a step is made of, operation by operation.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/bench_step.h"
#include "kernels/profile.h"
#include "report/chart.h"
#include "train/device.h"

namespace lockstep::cli {
namespace {

using kernels::OperationFigures;
using train::WorkloadRun;

/// A step of this rank, operation by operation: means over its steps. The tape, waits for sums and the
/// optimizer's bookkeeping are no operations of the backend: they are what is left of step_ms.
struct StepProfile {
  double step_ms = 0, exposed_comm_ms = 0;
  std::vector<OperationFigures> operations = {};  ///< of one step, the longest first
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
                       fmt::format("{} {} on {}, rank 0: {:.1f} ms a step (mean of {}{})\n", options.workload,
                                   precision, pluralized(ranks, "rank"), profile.step_ms, options.steps,
                                   profile.on_gpu ? ", without CUDA graphs" : ""));
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

void profile_steps(Session& session, const StepOptions& options) {
  const StepProfile found = measure_operations(session, options);
  const std::string precision = train::precision_text(options.compute, session.backend());
  if (session.world().rank() == 0) print_profile(found, options, session.world().size(), precision);
  options.page->write([&] { return page_of(found, options, precision, session); });
}

}  // namespace lockstep::cli
