// What lockstep bench step measures: its times (bench_step.cpp), or with --profile what it is made of
// (bench_profile.cpp).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli/result_page.h"

namespace lockstep::cli {

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

train::WorkloadRun workload_run(Session& session, const StepOptions& options);

/// Prints the operations of a step of rank 0. Collective.
void profile_steps(Session& session, const StepOptions& options);

}  // namespace lockstep::cli
