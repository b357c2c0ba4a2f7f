// lockstep bench step --profile: a step, operation by operation.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/bench.h"
#include "train/benchmark.h"

namespace lockstep::cli {
namespace {

double gflops(const kernels::OperationFigures& operation) { return 1e-6 * operation.flops / operation.ms; }
double gb_s(const kernels::OperationFigures& operation) { return 1e-6 * operation.bytes / operation.ms; }

struct Sums {
  double products_ms = 0, others_ms = 0;
};

Sums sums_of(const train::StepProfile& profile) {
  Sums sums;
  for (const kernels::OperationFigures& operation : profile.operations)
    (operation.flops > 0 ? sums.products_ms : sums.others_ms) += operation.ms;
  return sums;
}

void print_table(const train::StepProfile& profile) {
  const kernels::Ceilings& ceilings = profile.ceilings;
  const Sums sums = sums_of(profile);
  const double outside_ms = profile.step_ms - sums.products_ms - sums.others_ms;
  const auto share = [&](double ms) { return 100 * ms / profile.step_ms; };
  fmt::print("{} {} on {}, rank 0: {:.1f} ms a step (mean of {})\n", profile.model, profile.precision,
             pluralized(profile.ranks, "rank"), profile.step_ms, profile.steps);
  fmt::print(
      "this machine meanwhile: {:.1f} GFLOP/s (a product of {} x {}), {:.1f} GB/s (a copy of {} MiB)\n\n",
      ceilings.gflops, ceilings.product_rows, ceilings.product_rows, ceilings.gb_s,
      ceilings.copied_bytes >> 20);
  fmt::print("{:<56}{:>6}{:>9}{:>8}{:>9}{:>6}{:>8}{:>6}\n", "operation", "calls", "ms", "share", "GFLOP/s",
             "of it", "GB/s", "of it");
  for (const kernels::OperationFigures& operation : profile.operations) {
    fmt::print("{:<56}{:>6}{:>9.2f}{:>7.1f}%", operation.name, operation.calls, operation.ms,
               share(operation.ms));
    if (operation.flops > 0) {
      fmt::print("{:>9.1f}{:>5.0f}%", gflops(operation), 100 * gflops(operation) / ceilings.gflops);
    } else {
      fmt::print("{:>15}", "");
    }
    fmt::print("{:>8.1f}{:>5.0f}%\n", gb_s(operation), 100 * gb_s(operation) / ceilings.gb_s);
  }
  fmt::print("\n{:<62}{:>9.2f}{:>7.1f}%\n", "products", sums.products_ms, share(sums.products_ms));
  fmt::print("{:<62}{:>9.2f}{:>7.1f}%\n", "all other operations", sums.others_ms, share(sums.others_ms));
  fmt::print("{:<62}{:>9.2f}{:>7.1f}%\n", "outside operations", outside_ms, share(outside_ms));
  fmt::print("{:<62}{:>9.2f}{:>7.1f}%\n", "  of which communication that shows", profile.exposed_comm_ms,
             share(profile.exposed_comm_ms));
  if (std::ranges::any_of(profile.operations, [&](const kernels::OperationFigures& operation) {
        return gflops(operation) > 1.25 * ceilings.gflops;
      }))
    fmt::print(
        "\nConvolutions above 100% go by Winograd's products, with a quarter of the arithmetic that is "
        "counted.\n");
  if (std::ranges::any_of(profile.operations, [](const kernels::OperationFigures& operation) {
        return operation.name.starts_with("linear_activation") ||
               operation.name.starts_with("linear_backward_weight");
      }))
    fmt::print(
        "\nProducts include the activations, their slopes and the sums for biases that belong to them.\n");
}

void print_json(const train::StepProfile& profile) {
  const Sums sums = sums_of(profile);
  nlohmann::json operations = nlohmann::json::array();
  for (const kernels::OperationFigures& operation : profile.operations) {
    nlohmann::json row{{"name", operation.name},
                       {"calls", operation.calls},
                       {"ms", operation.ms},
                       {"gb_s", gb_s(operation)}};
    if (operation.flops > 0) row["gflops"] = gflops(operation);
    operations.push_back(std::move(row));
  }
  fmt::print("{}\n", nlohmann::json{{"model", profile.model},
                                    {"precision", profile.precision},
                                    {"ranks", profile.ranks},
                                    {"steps", profile.steps},
                                    {"step_ms", profile.step_ms},
                                    {"exposed_comm_ms", profile.exposed_comm_ms},
                                    {"products_ms", sums.products_ms},
                                    {"other_operations_ms", sums.others_ms},
                                    {"ceiling_gflops", profile.ceilings.gflops},
                                    {"ceiling_gb_s", profile.ceilings.gb_s},
                                    {"operations", std::move(operations)}}
                         .dump(2));
}

}  // namespace

void print_profile(Session& session, const std::string& workload, std::int64_t steps, bool json,
                   DType compute) {
  const train::StepProfile profile = train::profile_steps(session, workload, steps, compute);
  if (session.world().rank() != 0) return;
  json ? print_json(profile) : print_table(profile);
}

}  // namespace lockstep::cli
