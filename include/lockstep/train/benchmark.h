// The standard workloads, and how long their steps take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/train/config.h"
#include "lockstep/train/session.h"

namespace lockstep::train {

/// A model, an optimizer and a batch per rank, on made-up data. Every speed figure is of one of these.
struct StandardWorkload {
  std::string name;
  std::int64_t batch_per_rank = 0;
  std::string config;  ///< sections [model] and [optimizer]
};

const std::vector<StandardWorkload>& standard_workloads();

struct StepTimes {
  std::string model;
  std::string precision;
  int ranks = 0;
  std::int64_t steps = 0;  ///< measured
  double step_ms = 0;      ///< medians, of the slowest rank in each step
  double samples_per_second = 0;
  double exposed_comm_ms = 0;
};

/// Runs `steps` steps after a few unmeasured ones. Collective. Throws UsageError on an unknown workload,
/// naming the known ones.
StepTimes time_steps(Session& session, const std::string& workload, std::int64_t steps);

}  // namespace lockstep::train
