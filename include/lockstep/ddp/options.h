// The options of a DataParallel.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/ddp/hook.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::ddp {

/// The meaning of a trainable parameter without a gradient.
enum class Unused {
  error,  ///< all ranks throw a UsageError naming it, at the end of the same backward
  allow,  ///< zero; a parameter that no shard of any rank used keeps no gradient
};
/// The words of a configuration.
constexpr auto words(Unused) { return std::array{"error", "allow"}; }

/// When gradients are summed. The sums have the same bits in every mode; the simple modes are for comparisons
/// and for finding faults.
enum class Mode {
  overlapped,     ///< each bucket as soon as its last gradient exists
  flat,           ///< all gradients as one bucket, after backward
  per_parameter,  ///< one sum a parameter, one after another, after backward
};
/// The words of a configuration.
constexpr auto words(Mode) { return std::array{"overlapped", "flat", "per_parameter"}; }

/// Whether the passes of a step and its sums are captured as a graph (kernels::GraphCapture), which later
/// steps launch without calling the loss. The bits are the same. Loss and model must do the same work at
/// every step, as a function of the values of the batch, parameters and buffers only. Shards have tensors x
/// and y at a few recurring addresses; batches at ever new addresses are not captured.
enum class Graph {
  automatic,  ///< on a GPU, by one rank alone, if possible; CapturedSteps has the reason if not
  always,     ///< UsageError if impossible
  never,
};
/// The words of a configuration.
constexpr auto words(Graph) { return std::array{"auto", "true", "false"}; }

/// How gradients are summed.
struct Options {
  double bucket_mb = 25;       ///< MiB at which a bucket closes
  double first_bucket_mb = 1;  ///< the same for the first bucket, which is sent first
  int shards = 0;              ///< of the global batch; 0: the context's (Context::set_run), or one per rank
  int micro_batches = 1;       ///< of each shard
  /// Shards that one pass computes, at most: whole sub-trees of the reduction tree. 0: on a GPU as many as
  /// its memory allows, on a CPU one. The bits are those of one at a time: the first steps compare
  /// both, until no gradient is zero, and passes have one shard if they differ
  /// (DataParallel::shards_at_once). Ranks may have different numbers. More than one needs shards that are
  /// lockstep::Batch, alike but for their values, and a loss for each shard (loss_of_samples); Batch::index
  /// is that of the first.
  int shards_at_once = 0;
  Unused unused = Unused::error;  ///< meaning of a parameter without a gradient
  Mode mode = Mode::overlapped;   ///< when buckets are summed
  /// bfloat16 or float16: partial sums are rounded to it before they are sent. On CPUs they are sent between
  /// nodes and are added in float32; within a node ranks read each other's memory, and nothing is rounded. On
  /// GPUs every rank sends its sums, and NCCL may add in this type (comm/nccl.h). float16 ends at 65504: a
  /// gradient (a sum over the batch) above that is a TrainingError with the parameter's name.
  DType comm_dtype = DType::float32;
  std::shared_ptr<Hook> hook = nullptr;  ///< of this rank; none: plain sums
  /// Each rank gets the sums of the elements it owns and updates these (its optimizer holds state for them
  /// only); all-gathers of the parameters overlap with later work. The bits are the same.
  bool sharded_optimizer = false;
  std::int64_t check_every = 0;    ///< steps between comparisons of the replicas (check_replicas()); 0: never
  std::uint64_t seed = 0;          ///< of every random draw in the passes; 0: the context's, if any
  DType compute = DType::float32;  ///< type of the computation in passes (Pass::compute)
  Graph graph = Graph::never;      ///< whether the work of a step is captured
  /// step() returns a loss that is not finite. Otherwise such a step is a TrainingError.
  bool allow_non_finite_loss = false;

  static std::vector<Option<Options>> options();  ///< those of a configuration's [ddp]
  static std::vector<Option<Options>>
  options_of_run();  ///< of [train]: shards, micro_batches, seed, cuda_graph
  /// UsageError if a value is out of its row's range, or if there are fewer shards than ranks.
  void check(int ranks) const;
};

}  // namespace lockstep::ddp
