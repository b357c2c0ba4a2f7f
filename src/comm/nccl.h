// The transport between GPUs: NCCL; whether ranks share a GPU, and the environment that NCCL needs for it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

struct NcclOptions {
  int device = 0;          ///< the GPU, as CUDA numbers the visible ones
  void* stream = nullptr;  ///< the compute stream (a cudaStream_t): kernels::Backend::stream()
  /// Sums follow the tree, with the bits of CPUs with one rank a node. Otherwise they follow NCCL's order,
  /// which differs from world size to world size.
  bool reproducible = false;
  /// Several ranks may use one GPU: slow, for tests. LOCKSTEP_SHARE_GPU=1 in the environment has the same
  /// effect.
  bool share_gpu = false;
  double timeout_s = 600;  ///< the longest wait for other ranks inside one call; infinity: no limit
};

/// The NCCL that this process can load.
struct NcclFound {
  std::string version;  ///< "2.28.3"
  std::string problem;  ///< why NCCL cannot be loaded; empty: it can
  std::string remedy;   ///< what to do about it
};
NcclFound find_nccl();

/// Why the ranks of `host` cannot sum between their GPUs (`device`; -1: this rank has none): two ranks of one
/// node would share a GPU without permission (NcclOptions::share_gpu). Empty if they can. Collective, the
/// same on all ranks.
std::string sharing_problem(HostGroup& host, int device);

struct Sharing {
  bool shared = false;  ///< two ranks of one node have the same GPU
  std::string problem;  ///< error text if some rank does not permit it
};

/// address: of this rank's GPU; empty: none. allowed: LOCKSTEP_SHARE_GPU=1 in the environment has the same
/// effect. Collective, the same on all ranks.
Sharing find_sharing(HostGroup& host, const std::string& address, bool allowed);

/// The first two ranks of one node with the same GPU, by its PCI bus address, or {-1, -1}; an empty address
/// means no GPU. NCCL compares addresses too: it treats the slices of one card (MIG) as one GPU.
std::pair<int, int> shared_gpu(const Topology& topology, const std::vector<std::string>& gpu_of_rank);

/// "ranks 0 and 1 both use GPU 0000:3b:00.0 of node07; ..."
std::string sharing_text(const Topology& topology, const std::vector<std::string>& gpu_of_rank,
                         std::pair<int, int> ranks);

/// Environment variables for `rank` that make NCCL treat ranks of one GPU as ranks of different nodes, which
/// communicate by sockets.
std::vector<std::pair<std::string, std::string>> sharing_environment(int rank);

/// A transport whose memory and collectives are on a GPU. `host` is its group and must outlive it.
/// Collective. A world of one neither loads NCCL nor calls it. Flat buffers must be destroyed before their
/// transport.
///
/// Collectives run after the work that was launched on `stream` before them, and the CPU does not wait:
/// order_after() makes work that is launched on `stream` afterwards run after the collective. Work on that
/// stream may therefore read the flat buffer; any other reader synchronises with the stream first. done()
/// tells whether a collective is complete. Ranks that start different collectives hang without an error. The
/// watchdog of a program (lockstep::run) ends such ranks.
///
/// With a 16-bit comm_dtype every rank's partial sum and the result are rounded, also within a node; in
/// NCCL's own order (not `reproducible`) sums in between may be rounded too. A reduce-scatter has the bits of
/// the sum only if `reproducible`.
///
/// duplicate() gives a transport with another stream. All transports of a process start their collectives in
/// program order (NCCL_LAUNCH_ORDER_IMPLICIT), which must be the same on all ranks. NCCL starts when the
/// first flat buffer is allocated.
///
/// Throws UsageError where Lockstep was built without CUDA, if there is no such GPU, or if ranks would share
/// a GPU without permission; the same on all ranks.
std::unique_ptr<GradientTransport> make_nccl_transport(HostGroup& host, const NcclOptions& options);

}  // namespace lockstep::comm
