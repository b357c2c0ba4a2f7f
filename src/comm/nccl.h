// The transport between GPUs: NCCL, beside a communicator that carries what lies in the CPU's memory.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

struct NcclOptions {
  int device = 0;          ///< the GPU, as CUDA numbers the visible ones
  void* stream = nullptr;  ///< where it computes (a cudaStream_t): kernels::Backend::stream()
  /// Sums in the tree's order, with the bits that CPUs get with a node a rank; else in NCCL's own, which
  /// differs from world size to world size.
  bool reproducible = false;
  /// Several ranks may use one GPU: slow, for tests. LOCKSTEP_SHARE_GPU=1 in the environment says the same.
  bool share_gpu = false;
  double timeout_s = 600;  ///< the longest wait for other ranks inside one call; infinity: for ever
};

/// What of NCCL this process can have.
struct NcclFound {
  std::string version;  ///< "2.28.3"
  std::string problem;  ///< why there is none
  std::string remedy;   ///< what helps against that
};
NcclFound find_nccl();

/// Why the ranks of `host` cannot sum between the GPUs they would take (`device`; -1: this rank has none):
/// two ranks of one machine would share one that they may not share (NcclOptions::share_gpu). Empty if they
/// can. Collective, the same on all ranks.
std::string sharing_problem(Communicator& host, int device);

/// A communicator whose arenas lie in the memory of a GPU and whose collectives are made there; all else
/// (gathers, broadcasts, barriers, files, abort) goes to `host`, which must outlive it. Collective. A world
/// of one makes no call of NCCL and does not load it. Arenas must go before their communicator.
///
/// Collectives follow the work asked for on `stream` before them, and nothing on the CPU waits: wait() lets
/// the work asked for on `stream` after it begin when the collective is complete. So the arena may be read by
/// what runs on that stream; whoever reads it otherwise waits for the stream first. done() tells whether an
/// collective is complete. Ranks that start different collectives are not found out: they hang. `lockstep
/// train` has a watchdog that ends them; a program of one's own has it once it has called Session::watch().
///
/// Where `comm_dtype` is a 16-bit type every rank's partial sum is rounded, within a machine as well, and so
/// is the result; NCCL's own order may round in between, too (not `reproducible`). A reduce-scatter has the
/// bits of the sum only if `reproducible`.
///
/// split() gives a communicator with a stream of its own, whose collectives overtake those of its parent. All
/// communicators of a process start their collectives in the program's order (NCCL_LAUNCH_ORDER_IMPLICIT),
/// which must be the same on all ranks. NCCL starts up at the first arena: what is split off for gathers
/// alone costs nothing.
///
/// Throws UsageError where Lockstep was built without CUDA, if there is no such GPU, or if ranks would share
/// one that they may not share; the same on all ranks.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, const NcclOptions& options);

}  // namespace lockstep::comm
