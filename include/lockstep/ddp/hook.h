// Hook: replaces the plain sum of complete buckets, for example by compression.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

/// The gradient memory of this rank for a hook. Gradients and buckets have the numbers of plan().
class Buckets {
 public:
  virtual ~Buckets() = default;
  virtual const BucketPlan& plan() const = 0;              ///< which gradients are in which bucket
  virtual comm::GradientTransport& transport() const = 0;  ///< sums over ranks
  virtual kernels::Backend& backend() const = 0;           ///< carries out operations
  /// When a bucket is complete, accumulation buffers 0 .. partial_sums() - 1 hold this rank's partial sums of
  /// it, one for each maximal sub-tree of its shards. A rank without shards has none, but it has buffer 0.
  virtual int partial_sums() const = 0;
  virtual Tensor gradient(int gradient, int buffer) const = 0;  ///< of its shape
  virtual Tensor bucket(int bucket,
                        int buffer) const = 0;  ///< all of it as one vector, zero padding included
  virtual DType comm_dtype() const = 0;         ///< Options::comm_dtype, for the hook's own messages
  virtual bool failed() const = 0;  ///< this rank has failed in this step: its buffers are worthless
  /// Starts the plain sum of a bucket: when it is done, buffer 0 of every rank holds the sum over all shards.
  virtual comm::Work start_sum(int bucket) = 0;
};

/// One kind of state that a hook keeps from step to step, for checkpoints: /hook/NAME/PARAMETER. All ranks
/// hold the same values.
struct HookState {
  /// State of one parameter.
  struct Entry {
    std::string name;  ///< of the parameter
    Tensor tensor;     ///< a handle, to write into on resume
  };
  std::string name;            ///< "momentum"
  std::vector<Entry> entries;  ///< in the order of the parameters
};

/// Belongs to one DataParallel. All methods are collective; start() is called for every bucket of a step in
/// plan order, on a rank whose step has failed too (its accumulation buffers are worthless then, but its
/// peers wait for it). In the steady state a hook should allocate nothing. Its exceptions end the program, as
/// peers may be waiting for its part.
class Hook {
 public:
  virtual ~Hook() = default;
  /// Must be equal on all ranks of a DataParallel: "rounding bits=4".
  virtual std::string describe() const = 0;
  /// Called before the first step, and whenever the plan has changed. `buckets` stays valid for the hook's
  /// life.
  virtual void bind(Buckets& buckets) = 0;
  /// The number of the step that begins.
  virtual void begin_step(std::uint64_t step) = 0;
  /// The bucket is complete on this rank. Starts communication and returns; backward may still be running.
  virtual void start(int bucket) = 0;
  /// All buckets have been started. When it returns, accumulation buffer 0 holds the sum over all shards to
  /// use, the same on every rank.
  virtual void finish() = 0;

  /// Its state, nothing by default; the same list from the first bind() to the end.
  virtual std::vector<HookState> state() { return {}; }
  /// The backend of the device that holds its state. Null: the state is in CPU memory.
  virtual kernels::Backend* backend() { return nullptr; }
};

}  // namespace lockstep::ddp
