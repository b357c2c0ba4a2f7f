// The standard workloads, how long their steps take, and how much of their communication shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
/// Throws UsageError on an unknown name, naming the known ones.
const StandardWorkload& workload_named(const std::string& name);

struct StepTimes {
  std::string model;
  std::string precision;
  int ranks = 0;
  std::int64_t steps = 0;  ///< measured
  double step_ms = 0;      ///< medians, of the slowest rank in each step
  double samples_per_second = 0;
  double exposed_comm_ms = 0;
};

/// Runs `steps` steps after a few unmeasured ones. Collective. Throws UsageError on an unknown workload.
StepTimes time_steps(Session& session, const std::string& workload, std::int64_t steps);

/// A bucket of a step; statistics of batch norm, if there are any, are the last. Medians of the slowest rank.
struct BucketFigures {
  std::size_t bytes = 0;
  double ready_ms = 0;  ///< its gradients exist, where nothing is communicated; from the start of the step
  double wire_ms = 0;   ///< its sum alone, from a barrier on
  double start_ms = 0;  ///< its sum was started, in a step of all ranks
  double done_ms = 0;   ///< and found complete
};

/// One way of communicating. Medians over steps, of the slowest rank in each.
struct OverlapTimes {
  std::string mode;  ///< per_parameter, flat or overlapped; with several bucket sizes, "overlapped 4 MiB"
  double step_ms = 0;
  double compute_ms = 0;  ///< the same program on transport `self`: every rank alone, all at the same time
  double comm_ms = 0;     ///< the same buckets started at once, without a backward
  /// The greatest of the end of backward and, for any bucket, ready_ms and the wire_ms of it and all later
  /// ones; then header_ms and optimizer_ms.
  double critical_path_ms = 0;
  double exposed_comm_ms = 0;  ///< from the end of backward until all sums and the header are complete
  double header_ms = 0;        ///< the all-gather that ends every step, alone
  double optimizer_ms = 0;     ///< from the end of backward to the end of a step of one rank alone
  std::vector<BucketFigures> buckets = {};
};

struct OverlapOptions {
  std::int64_t steps = 20;  ///< measured in each mode
  /// ddp.bucket_mb of mode overlapped, one row each; none: its default.
  std::vector<double> bucket_mb = {};
};

/// The three modes in alternating rounds. Collective. Throws UsageError on an unknown workload or a bad
/// number.
std::vector<OverlapTimes> time_overlap(Session& session, const std::string& workload,
                                       const OverlapOptions& options);

}  // namespace lockstep::train
