// The ranks of one node as a communicator sees them: their shared flags, and the planes they sum.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "comm/shared_window.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// What a rank tells its node. Each counter has one writer and its own pair of cache lines (processors fetch
/// lines in pairs).
struct NodeFlags {
  static constexpr std::size_t line_bytes = SharedWindow::alignment;
  static constexpr std::size_t slot_bytes = 4096;

  alignas(line_bytes) std::atomic<std::uint64_t> started;  ///< tree sums this rank has handed its planes to
  alignas(line_bytes) std::atomic<std::uint64_t> added;    ///< tree sums whose elements this rank has written
  alignas(line_bytes) std::atomic<std::uint64_t> gathered;  ///< gathers this rank has filled its slot for
  alignas(line_bytes) std::byte slots[2][slot_bytes];       ///< used in turn by gathers
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "flags in shared memory must not need a lock");

/// The flags of all ranks of a node.
class NodeBoard {
 public:
  /// Collective over the node.
  NodeBoard(MPI_Comm node, int local_rank, int local_ranks);

  int local_rank() const { return local_rank_; }
  int local_ranks() const { return local_ranks_; }
  NodeFlags& mine() const { return of(local_rank_); }
  NodeFlags& of(int local_rank) const {
    return *std::launder(reinterpret_cast<NodeFlags*>(window_.segment(local_rank)));
  }
  /// True if the counter of every rank has reached `value`; what they wrote before is then visible here.
  bool all_reached(std::atomic<std::uint64_t> NodeFlags::*counter, std::uint64_t value) const {
    for (int peer = 0; peer < local_ranks_; ++peer) {
      if ((of(peer).*counter).load(std::memory_order_acquire) < value) return false;
    }
    return true;
  }

 private:
  int local_rank_;
  int local_ranks_;
  SharedWindow window_;
};

/// An arena whose planes every rank of the node can reach.
class NodeArena final : public Arena {
 public:
  /// Collective over the node. `owner` tells arenas of different communicators apart.
  NodeArena(const void* owner, MPI_Comm node, int local_rank, std::size_t plane_bytes, int planes);

  std::byte* plane(int index) override;
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }

  const void* owner() const { return owner_; }
  std::byte* plane_of(int local_rank, int index) const {
    return window_.segment(local_rank) + stride_bytes_ * static_cast<std::size_t>(index);
  }

 private:
  const void* owner_;
  int local_rank_;
  std::size_t plane_bytes_;
  std::size_t stride_bytes_;
  int planes_;
  SharedWindow window_;
};

}  // namespace lockstep::comm
