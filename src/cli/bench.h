// The subjects of lockstep bench, a file each, and what they share.
#pragma once

#include "cli/verb.h"
#include "report/document.h"
#include "train/run/benchmark.h"

namespace lockstep::cli {

VerbFunction bench_allreduce, bench_checkpoint, bench_overlap, bench_step;

constexpr double bytes_per_mib = 1 << 20;

/// --workload and --steps.
void add_workload(OptionSet& options);
/// "gpt-cpu, resnet-cpu, ..."
std::string workload_names();
/// "2 ranks on 1 node"
std::string ranks_and_nodes(const comm::HostGroup& world);
/// What the page of a result says above it; the ranks are a fact of every page.
struct PageHead {
  std::string title, lead;
  report::Pairs facts = {};
};
/// Shows a result, which is what --json prints. `section`: of the page alone, which also has the environment.
/// Collective.
void show(const ResultOutput& output, const Session& session, const nlohmann::json& result,
          const std::function<void()>& print_text, const PageHead& head, const nlohmann::json& section = {});

}  // namespace lockstep::cli
