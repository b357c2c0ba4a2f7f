// Shared data of the ranks of one node: memory, a control block, and the accumulators that they sum.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "base/cores.h"
#include "comm/collective.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// Whether a node has more ranks than hardware threads that these may use together; `mine` are those of this
/// rank. Collective over the node.
bool oversubscribed(MPI_Comm node, const CoreSet& mine);

/// One zeroed segment a rank, 128-byte aligned, all readable and writable by every rank of the node.
/// Construction and destruction are collective over the node's communicator, which must outlive it.
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
  /// For peers that never destroy theirs: the process keeps the memory until it ends.
  void abandon() { window_ = MPI_WIN_NULL; }

  std::byte* segment(int local_rank) const { return segments_[static_cast<std::size_t>(local_rank)]; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> segments_;
};

/// The collectives of one sequence that a rank has begun, counted from 1, with descriptions of the newest.
struct BegunCollectives {
  /// Collectives use at most half of these: a rank begins another one only when all ranks of its node have
  /// finished the oldest. Calls may be ahead of the peers.
  static constexpr std::uint64_t kept = 8;

  alignas(SharedWindow::alignment) std::atomic<std::uint64_t> count;
  std::uint64_t signatures[kept];
  alignas(SharedWindow::alignment) Collective descriptions[kept];  ///< described by the signatures
};

/// The state that a rank shows to its node. Each counter has one writer and a pair of cache lines (processors
/// fetch lines in pairs), which it shares only with data that is read right after it.
struct RankFlags {
  static constexpr std::size_t line_bytes = SharedWindow::alignment;
  static constexpr std::size_t slot_bytes = 4096;

  BegunCollectives started;                              ///< peers may read this rank's accumulators
  alignas(line_bytes) std::atomic<std::uint64_t> added;  ///< collectives whose part this rank has done
  BegunCollectives gathers;                              ///< of host memory; this rank has filled the slot
  alignas(line_bytes) std::byte slots[2][slot_bytes];    ///< gathers alternate between them
  BegunCollectives calls;                                ///< NamedCalls: of each only `call` is set
  /// In the node's first rank: the error text of the first rank that saw a difference, for all ranks.
  enum class Verdict : std::uint32_t { none, begun, written };
  alignas(line_bytes) std::atomic<Verdict> verdict;
  char verdict_text[1024];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "flags in shared memory must not need a lock");

/// The control block that the ranks of a node share: the flags of all.
class NodeControl {
 public:
  using Sequence = BegunCollectives RankFlags::*;

  /// Collective over the node. ranks[i]: the world rank, for errors, of the node's i-th rank.
  NodeControl(MPI_Comm node, int local_rank, std::vector<int> ranks);

  int local_rank() const { return local_rank_; }
  int local_ranks() const { return static_cast<int>(ranks_.size()); }
  RankFlags& mine() const { return of(local_rank_); }
  RankFlags& of(int local_rank) const {
    return *std::launder(reinterpret_cast<RankFlags*>(window_.segment(local_rank)));
  }

  /// Tells the node that this rank has begun `collective` under this number.
  void begin(Sequence sequence, std::uint64_t number, const Collective& collective) const;
  /// True if every rank has begun the collective with this number, or has added its part. What a rank wrote
  /// before is then visible here.
  bool all_began(Sequence sequence, std::uint64_t number) const {
    return all_reached(
        number, [sequence](RankFlags & flags) -> auto& { return (flags.*sequence).count; });
  }
  bool all_added(std::uint64_t number) const {
    return all_reached(
        number, [](RankFlags & flags) -> auto& { return flags.added; });
  }
  /// Throws UsageError, the same on every rank of the node from now on, if some have begun another collective
  /// or call under this number than this rank or the first of those that have begun any.
  void check_same(Sequence sequence, std::uint64_t number) const;
  /// For a rank that waits for a sum within `call`: throws the UsageError if a rank of the node is in its
  /// next collective of host memory and has started fewer sums before.
  void check_order(std::uint64_t gathers, std::uint64_t sums, const CallName& call) const;
  /// Throws the UsageError of the node, if there is one.
  void check() const;
  /// Makes the text the error of all ranks of the node, unless they have one; throws that error.
  void fail(const std::string& text) const;

 private:
  template <class Counter>
  bool all_reached(std::uint64_t value, const Counter& counter) const {
    for (int peer = 0; peer < local_ranks(); ++peer) {
      if (counter(of(peer)).load(std::memory_order_acquire) < value) return false;
    }
    return true;
  }

  int local_rank_;
  std::vector<int> ranks_;
  SharedWindow window_;
};

/// A flat buffer whose accumulators every rank of the node can read and write.
class NodeBuffer final : public FlatBuffer {
 public:
  /// Collective over the node. `owner` is the communicator, `number` the flat buffer among its flat buffers;
  /// all ranks pass the same number.
  NodeBuffer(HostGroup* owner, std::uint64_t number, MPI_Comm node, int local_rank,
             std::size_t accumulator_bytes, int accumulators);
  /// If peers call something else, a later call throws the error.
  ~NodeBuffer() override;

  std::byte* accumulator(int index) override;
  int accumulators() const override { return accumulators_; }
  std::size_t accumulator_bytes() const override { return accumulator_bytes_; }

  const HostGroup* owner() const { return owner_; }
  std::uint64_t number() const { return number_; }
  std::byte* accumulator_of(int local_rank, int index) const {
    return window_.segment(local_rank) + stride_bytes_ * static_cast<std::size_t>(index);
  }

 private:
  HostGroup* owner_;
  std::uint64_t number_;
  int local_rank_;
  std::size_t accumulator_bytes_;
  std::size_t stride_bytes_;
  int accumulators_;
  SharedWindow window_;
};

}  // namespace lockstep::comm
