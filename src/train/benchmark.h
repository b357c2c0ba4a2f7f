// The standard workloads, how long their steps take, and how much of their communication shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/profile.h"
#include "lockstep/train/session.h"
#include "train/config.h"

namespace lockstep::train {

/// A model, an optimizer and a batch per rank, on made-up data. Every speed figure is of one of these.
struct StandardWorkload {
  std::string name;
  std::int64_t batch_per_rank = 0;
  std::string config;              ///< sections [model] and [optimizer]
  std::int64_t image_pixels = 32;  ///< of images, each way
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
  double peak_memory_bytes = 0;  ///< the host's, of the largest rank's process, since it started
  double page_faults = 0;        ///< a step, of the rank with most: 0 where steps reuse their memory
};

/// Runs `steps` steps after a few unmeasured ones. Collective. overrides: of the workload's model
/// and optimizer, "model.recompute=true". Throws UsageError on an unknown workload or key.
StepTimes time_steps(Session& session, const std::string& workload, std::int64_t steps,
                     DType compute = DType::float32, const std::vector<std::string>& overrides = {});

/// What a step is made of, on this rank: means over its steps. What is no operation of the backend (the tape,
/// waiting for sums, the optimizer's bookkeeping) is what is left of step_ms.
struct StepProfile {
  std::string model;
  std::string precision;
  int ranks = 0;
  std::int64_t steps = 0;  ///< measured
  double step_ms = 0;
  double exposed_comm_ms = 0;
  std::vector<kernels::OperationFigures> operations = {};  ///< of one step, the longest first
  kernels::Ceilings ceilings = {};                         ///< measured between the steps
};

/// Runs `steps` steps after a few unmeasured ones. Collective. Throws UsageError on an unknown workload.
StepProfile profile_steps(Session& session, const std::string& workload, std::int64_t steps,
                          DType compute = DType::float32);

/// What the order of additions costs: a rank's batch in several passes, as shards, whose gradients are summed
/// along the tree, and as micro batches of one shard, whose gradients are added up in the order they come.
struct TreeOrderTimes {
  int passes = 0;      ///< a rank
  double tree_ms = 0;  ///< of a step: medians, of the slowest rank in each
  double in_order_ms = 0;
  int accumulators = 0;  ///< of gradient memory that the tree takes; otherwise it is 1
  std::size_t accumulator_bytes = 0;
};

/// Steps of both in alternation. Collective. Throws UsageError on an unknown workload, or if `passes` do not
/// divide its batch.
TreeOrderTimes time_tree_order(Session& session, const std::string& workload, std::int64_t steps, int passes,
                               DType compute = DType::float32);

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

/// Saves and their parts. Rates are of all ranks together, MB = 10^6 bytes; medians over rounds, of the
/// slowest rank in each.
struct CheckpointTimes {
  std::uint64_t bytes = 0;  ///< of elements
  int ranks = 0;
  double write_mb_s = 0;                    ///< a save that is waited for, from call to return
  double raw_mb_s = 0;                      ///< pwrite of each rank's equal part to a file of all, and fsync
  double sync_ms = 0;                       ///< the save of write_mb_s
  double read_mb_s = 0, raw_read_mb_s = 0;  ///< verify(), and pread of each rank's part; from storage
  double cached_read_mb_s = 0, raw_cached_read_mb_s = 0;  ///< the same where memory still has the file
  double async_stall_ms = 0;                              ///< until an asynchronous save returns
  double copy_ms = 0;                                     ///< each rank's part copied in memory
  double async_ms = 0;                                    ///< until it is through, training all the time
  double step_ms = 0, step_while_saving_ms = 0;           ///< of the workload
  double many_ms = 0;  ///< a save of 5,000 tensors of 1 KiB that is waited for
};

struct CheckpointBenchmarkOptions {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  /// On the storage to measure. Files go to a new directory in it, and are removed.
  std::string directory = ".";
  int rounds = 5;
  std::string workload = "gpt-cpu";
};

/// Collective. Throws UsageError on an unknown workload, bad numbers or a place that is not writable.
CheckpointTimes time_checkpoint(Session& session, const CheckpointBenchmarkOptions& options);

}  // namespace lockstep::train
