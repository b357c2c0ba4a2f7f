// The benchmarks of lockstep bench, each with its own file, and what they share.
#pragma once

#include "cli/verb.h"
#include "report/document.h"
#include "train/run/benchmark.h"

namespace lockstep::cli {

VerbFunction bench_allreduce, bench_checkpoint, bench_data, bench_overlap, bench_step;

constexpr double bytes_per_mib = 1 << 20;

/// Adds --workload and --steps.
void add_workload(OptionSet& options);
/// "gpt-cpu, resnet-cpu, ..."
std::string workload_names();
/// "2 ranks on 1 node"
std::string ranks_and_nodes(const comm::HostGroup& world);
/// The head of a result's page. Facts exclude the ranks, which every page shows.
struct PageHead {
  std::string title, lead;
  report::Pairs facts = {};
};
/// Prints `result`, which is the document of --json, and writes the page: the result, `section` and the
/// environment. Collective.
void show(const ResultOutput& output, const Session& session, const nlohmann::json& result,
          const std::function<void()>& print_text, const PageHead& head, const nlohmann::json& section = {});

}  // namespace lockstep::cli
