// What a step of DataParallel hands to the loss, and what it returns.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/tensor/batch.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// What a rank asks of all ranks, or reports to them. Every rank gets it in the result of the same step.
struct Requests {
  bool stop_preempted = false;  ///< preemption or the time limit: checkpoint, then exit 75
  bool stop_user = false;       ///< checkpoint, then exit 76
  bool checkpoint = false;      ///< checkpoint, then continue
  bool saving = false;          ///< this rank's writer of an asynchronous save is at work
  bool save_failed = false;     ///< it has failed
  /// A checkpoint is asked for.
  bool any() const { return stop_preempted || stop_user || checkpoint; }
  bool operator==(const Requests&) const = default;

  /// For messages between ranks: the requests of all ranks are the union of their bits.
  std::uint64_t to_bits() const;
  static Requests from_bits(std::uint64_t bits);  ///< those whose bits are set
};

/// The samples of a shard that one pass is over.
struct MicroBatch {
  int index = 0;       ///< which micro-batch of the shard
  int count = 1;       ///< how many micro-batches the shard has
  bool empty = false;  ///< a pass over no samples: layers that meet across ranks need every rank in them
  /// The rows of this micro-batch in a tensor that holds the shard's samples: [n index / count,
  /// n (index + 1) / count), or none.
  Tensor rows(const Tensor& samples) const;
  Batch rows(const Batch& samples) const;  ///< the samples of this micro-batch; a view
};

/// The verdict on a step: the same on every rank, except for the times.
struct StepResult {
  std::uint64_t step = 0;  ///< finished updates before this step
  double loss_sum = 0;     ///< over the global batch, folded along the tree over shards; may be not finite
  double count = 0;        ///< what divides it: samples or tokens of the global batch
  Requests requests;       ///< of at least one rank
  /// Times of this rank, by the clock of its device. With a sharded optimizer, the time that the program has
  /// waited for parameters since the last step's sums counts as communication. On a GPU the device waits
  /// instead of the program: such waits are part of compute_ms, and not of exposed_comm_ms.
  double compute_ms = 0;       ///< from the start of the step to the end of its last backward
  double exposed_comm_ms = 0;  ///< from there until every sum and the step header are complete
  double mean_loss() const { return loss_sum / count; }  ///< over the global batch: a true mean
};

/// When a bucket moved, in ms since the start of the step, on this rank's clock. `done_ms` is when this rank
/// noticed. In a step that was launched as a graph (Options::graph) the others are the time of the launch.
struct BucketTime {
  double ready_ms = 0;  ///< its last gradient was written
  double start_ms = 0;  ///< all buckets before it had started, and so did its sum
  double done_ms = 0;   ///< the sum was complete here
};

/// Of Options::graph.
struct CapturedSteps {
  /// How often the work was captured; how often a graph was launched.
  std::int64_t captures = 0, launches = 0;
  std::string refused;  ///< why there are none, or no more; empty: no reason is known
};

}  // namespace lockstep::ddp
