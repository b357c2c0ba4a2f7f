// The arguments of the loss in a step of DataParallel, and the step's result.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/tensor/batch.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// Requests and reports of a rank to all ranks. Every rank gets them in the result of the same step.
struct Requests {
  bool stop_preempted = false;  ///< preemption or the time limit: checkpoint, then exit 75
  bool stop_user = false;       ///< checkpoint, then exit 76
  bool checkpoint = false;      ///< checkpoint, then continue
  bool saving = false;          ///< this rank's writer of an asynchronous save is at work
  bool save_failed = false;     ///< it has failed
  /// Whether a checkpoint is requested.
  bool any() const { return stop_preempted || stop_user || checkpoint; }
  bool operator==(const Requests&) const = default;

  /// For messages between ranks: the requests of all ranks are the union of their bits.
  std::uint64_t to_bits() const;
  static Requests from_bits(std::uint64_t bits);  ///< those whose bits are set
};

/// The samples of a shard in one pass.
struct MicroBatch {
  int index = 0;       ///< which micro-batch of the shard
  int count = 1;       ///< how many micro-batches the shard has
  bool empty = false;  ///< a pass over no samples: layers that meet across ranks need every rank in them
  /// The rows of this micro-batch in a tensor that holds the shard's samples: [n index / count,
  /// n (index + 1) / count), or none.
  Tensor rows(const Tensor& samples) const;
  Batch rows(const Batch& samples) const;  ///< the samples of this micro-batch; a view
};

/// The result of a step: the same on every rank, except for the times.
struct StepResult {
  std::uint64_t step = 0;  ///< finished updates before this step
  double loss_sum = 0;     ///< over the global batch, folded along the tree over shards; may be not finite
  double count = 0;        ///< its divisor: samples or tokens of the global batch
  Requests requests;       ///< of at least one rank
  /// Times of this rank, by the clock of its device. With a sharded optimizer, the program's waits for
  /// parameters since the last step's sums count as communication. On a GPU the device waits instead of the
  /// program: such waits are part of compute_ms, not of exposed_comm_ms.
  double compute_ms = 0;       ///< from the start of the step to the end of its last backward
  double exposed_comm_ms = 0;  ///< from there until every sum and the step header are complete
  double mean_loss() const { return loss_sum / count; }  ///< over the global batch: a true mean
};

/// When a bucket moved, in ms since the start of the step, on this rank's clock. `done_ms` is the time when
/// this rank noticed the end. In a step that was launched as a graph (Options::graph), the others are the
/// time of the launch.
struct BucketTime {
  double ready_ms = 0;  ///< its last gradient was written
  double start_ms = 0;  ///< all buckets before it had started, and so did its sum
  double done_ms = 0;   ///< the sum was complete here
};

/// Options::shards_at_once, as the first steps have found it for this rank.
struct ShardsAtOnce {
  int shards = 1;       ///< of the largest pass
  std::string refused;  ///< why they are one, although more were asked for; empty: no reason
};

/// The captures of Options::graph.
struct CapturedSteps {
  /// The number of captures, and of launches of graphs.
  std::int64_t captures = 0, launches = 0;
  std::string refused;  ///< why there are none, or no more; empty: unknown
};

}  // namespace lockstep::ddp
