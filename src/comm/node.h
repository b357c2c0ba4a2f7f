// What the ranks of one node share: memory, flags, and the accumulation buffers they sum.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "comm/collective.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// One zeroed segment a rank, 128-byte aligned, all readable and writable by every rank of the node. Making
/// and destroying one is collective over the node's communicator, which must outlive it.
class SharedWindow {
 public:
  static constexpr std::size_t alignment = 128;

  /// Segments may differ in size.
  SharedWindow(MPI_Comm node, std::size_t bytes);
  /// While an exception unwinds it does nothing, as the peers may be elsewhere; the process then keeps the
  /// memory until it ends.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* segment(int local_rank) const { return segments_[static_cast<std::size_t>(local_rank)]; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> segments_;
};

/// What a rank tells its node. Each counter has one writer and a pair of cache lines (processors fetch lines
/// in pairs), which it shares only with data that is read right after it.
struct NodeFlags {
  static constexpr std::size_t line_bytes = SharedWindow::alignment;
  static constexpr std::size_t slot_bytes = 4096;
  /// Collectives that run at once. A rank begins the next one only when all ranks of its node have finished
  /// the first of these, so a ring of this length describes them all.
  static constexpr std::uint64_t max_active = 4;

  alignas(
      line_bytes) std::atomic<std::uint64_t> started;  ///< collectives that may read this rank's accumulators
  std::uint64_t signatures[max_active];                ///< of those that run
  alignas(line_bytes) std::atomic<std::uint64_t> added;     ///< collectives whose part this rank has done
  alignas(line_bytes) std::atomic<std::uint64_t> gathered;  ///< gathers whose slot this rank has filled
  GatherNote gathers[2];                                    ///< what they are
  alignas(line_bytes) std::byte slots[2][slot_bytes];       ///< gathers alternate between them
  alignas(line_bytes) Collective collectives[max_active];   ///< what the signatures stand for
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "flags in shared memory must not need a lock");

/// The control block that the ranks of a node share: the flags of all.
class NodeControl {
 public:
  /// Collective over the node. ranks[i]: the world rank, for errors, of the node's i-th rank.
  NodeControl(MPI_Comm node, int local_rank, std::vector<int> ranks);

  int local_rank() const { return local_rank_; }
  int local_ranks() const { return static_cast<int>(ranks_.size()); }
  NodeFlags& mine() const { return of(local_rank_); }
  NodeFlags& of(int local_rank) const {
    return *std::launder(reinterpret_cast<NodeFlags*>(window_.segment(local_rank)));
  }
  /// True if the counter of every rank has reached `value`; what they wrote before is then visible here.
  bool all_reached(std::atomic<std::uint64_t> NodeFlags::*counter, std::uint64_t value) const {
    for (int peer = 0; peer < local_ranks(); ++peer) {
      if ((of(peer).*counter).load(std::memory_order_acquire) < value) return false;
    }
    return true;
  }

  /// Tells the node that this rank has started `collective` under this number.
  void publish(std::uint64_t work, const Collective& collective) const;
  /// Throws FailureError, the same on every rank of the node, unless all have started the same collective
  /// under this number. All must have started one.
  void check_same_collective(std::uint64_t work) const;
  /// The same for a gather.
  void check_same_gather(std::uint64_t gather) const;

 private:
  int local_rank_;
  std::vector<int> ranks_;
  SharedWindow window_;
};

/// A flat buffer whose accumulators every rank of the node can read and write.
class NodeBuffer final : public FlatBuffer {
 public:
  /// Collective over the node. `owner` identifies the communicator, `number` the flat buffer among its flat
  /// buffers; all ranks pass the same number.
  NodeBuffer(const void* owner, std::uint64_t number, MPI_Comm node, int local_rank,
             std::size_t accumulator_bytes, int accumulators);

  std::byte* accumulator(int index) override;
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }

  const void* owner() const { return owner_; }
  std::uint64_t number() const { return number_; }
  std::byte* accumulator_of(int local_rank, int index) const {
    return window_.segment(local_rank) + stride_bytes_ * static_cast<std::size_t>(index);
  }

 private:
  const void* owner_;
  std::uint64_t number_;
  int local_rank_;
  std::size_t accumulator_bytes_;
  std::size_t stride_bytes_;
  int accumulators_;
  SharedWindow window_;
};

}  // namespace lockstep::comm
