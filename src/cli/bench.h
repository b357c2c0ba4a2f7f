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
/// Writes the page of a result as --json prints it: with a head of title, lead and facts, more sections, and
/// the environment. Collective.
void write_page(const ResultPage& page, const Session& session, const nlohmann::json& head,
                const nlohmann::json& result, const nlohmann::json& section = {});

}  // namespace lockstep::cli
