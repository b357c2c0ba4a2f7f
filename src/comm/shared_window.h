// Memory that the ranks of one node share.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

namespace lockstep::comm {

/// One zeroed segment a rank, 128-byte aligned, all readable and writable by every rank of the node. Making
/// and destroying one is collective over the node's communicator, which must outlive it.
class SharedWindow {
 public:
  static constexpr std::size_t alignment = 128;

  /// Segments may differ in size.
  SharedWindow(MPI_Comm node, std::size_t bytes);
  /// While an exception unwinds the memory is left to the end of the process: the peers may be elsewhere.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* segment(int local_rank) const { return segments_[static_cast<std::size_t>(local_rank)]; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> segments_;
};

}  // namespace lockstep::comm
