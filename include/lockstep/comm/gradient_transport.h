// GradientTransport: how the ranks of a group sum gradients, along the reduction tree. Shared memory and MPI
// between CPUs (communicator.h), NCCL between GPUs (src/comm/nccl.h). A new transport implements this class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/host_group.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/comm/slices.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// Memory that collectives work on: `accumulators` accumulators (accumulation buffers) of `accumulator_bytes`
/// each, 64-byte aligned, zeroed. All ranks allocate it together; ranks of one node read each other's
/// accumulators. Every rank has the same accumulator_bytes; the number of accumulators may differ. Destroying
/// it is collective.
class FlatBuffer {
 public:
  virtual ~FlatBuffer() = default;
  virtual std::byte* accumulator(int index) = 0;      ///< the memory of an accumulation buffer, by number
  virtual int accumulators() const = 0;               ///< how many accumulation buffers there are
  virtual std::size_t accumulator_bytes() const = 0;  ///< bytes of each of them
  /// Call it if unfinished collectives may still use the memory. True: destruction is no longer collective
  /// and keeps the memory until the process ends. False: the buffer must not be destroyed.
  virtual bool abandon() { return false; }
};

/// The work handle of a started collective: a sum, a reduce-scatter or an all-gather. Work handles count up
/// from 1 per transport; 0 means "none".
using Work = std::uint64_t;

/// What a collective works on: `count` elements at the same byte offset of every accumulator.
struct TreeSum {
  FlatBuffer* flat_buffer = nullptr;  ///< the memory that is summed
  std::size_t offset_bytes = 0;       ///< multiple of 64
  std::int64_t count = 0;             ///< elements
  DType dtype = DType::float32;       ///< float32 or float64; an all-gather takes any type
  /// The communication dtype. bfloat16 or float16: partial sums are rounded to it before they are sent, and
  /// the result is rounded once, so all ranks end with the same values. Between CPUs only what is sent
  /// between nodes is rounded (ranks of one node read each other's memory, so a single node rounds nothing),
  /// and additions stay in float32; for GPUs see nccl.h. rounds() tells whether a transport rounds anything.
  /// float64 sums and all-gathers ignore it.
  DType comm_dtype = DType::float32;
};

/// These are collective and have the same order on every rank: allocate_buffer, the three starts,
/// order_after, duplicate. Waiting yields the core. A transport belongs to one thread at a time. Failures
/// throw FailureError with the call's name and the rank. If ranks of one node start different collectives as
/// the same number, or if a rank calls something else (NamedCall), they get the same UsageError, which shows
/// both sides. Nothing is written then, and every later call throws it again.
class GradientTransport {
 public:
  virtual ~GradientTransport() = default;

  /// The ranks that sum.
  virtual HostGroup& group() = 0;
  /// Whether sums with this communication dtype are rounded to it anywhere. The same on all ranks.
  virtual bool rounds(DType comm_dtype) const = 0;

  /// Memory for accumulation buffers. Collective. Throws the same error on every rank.
  virtual std::unique_ptr<FlatBuffer> allocate_buffer(std::size_t accumulator_bytes, int accumulators) = 0;

  /// Starts a sum over all shards, along the tree. Before the call, accumulator p of this rank holds the
  /// partial sum of its p-th maximal sub-tree (map.subtrees(rank)); a rank without shards has none. When
  /// done, accumulator 0 of every rank holds the sum (so every rank needs at least one accumulator). Returns
  /// at once; collectives run in the order started. Nothing else, not even another collective, may use the
  /// memory in between.
  virtual Work start_tree_sum(const TreeSum& sum, const ShardMap& map) = 0;
  /// The same, with the same bits, but in the end only the elements that this rank owns hold the sum, in its
  /// accumulator 0. The contents of its other accumulators are then unspecified.
  virtual Work start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) = 0;
  /// Accumulator 0 of each rank holds the elements it owns; when done, accumulator 0 of every rank holds all
  /// of them. Copies bytes of any type.
  virtual Work start_all_gather(const TreeSum& vector, const Slices& slices) = 0;
  /// Advances started collectives without blocking. The computing thread calls it often.
  virtual void progress() = 0;
  /// True once the collective and all started before it are complete here. Calls progress().
  virtual bool done(Work work) = 0;
  /// Between CPUs: returns when the collective is complete. Between GPUs: work that is launched on the
  /// compute stream afterwards runs after the collective. finish() below waits for either.
  virtual void order_after(Work work) = 0;
  /// Whether collectives may be started during the capture of a graph (kernels::GraphCapture). Every launch
  /// of the graph then runs them, all ranks must launch their graphs together, and the work handles may only
  /// be passed to order_after() within the same capture.
  virtual bool may_be_captured() const { return false; }
  /// The work handle of all work launched on the device so far, including collectives of launched graphs. All
  /// ranks must wait for it.
  virtual Work after_graphs() { return 0; }
  /// An error of the transport that occurred while this rank waits elsewhere; empty: none. For any thread.
  virtual std::string async_error() const { return {}; }
  /// A transport of the same ranks whose collectives may overtake those of this one.
  virtual std::unique_ptr<GradientTransport> duplicate() = 0;
};

/// Returns when the collective is complete, for any transport. Throws FailureError if the transport fails
/// meanwhile.
void finish(GradientTransport& transport, Work work);

}  // namespace lockstep::comm
