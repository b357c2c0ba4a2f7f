// The threads of a rank: their number, their cores, and a check that there are enough cores for all.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// The cores that a rank may use on its node.
struct RankCores {
  int node = 0;
  CoreSet hardware_threads;        ///< its affinity mask
  CoreSet cores;                   ///< the physical cores of these
  std::vector<CoreSet> by_core{};  ///< the hardware threads grouped by core (core_by_core())
  int node_hardware_threads = 0;   ///< of the whole node
  double cgroup_cores = 0;         ///< processor time that its cgroup grants, in cores; 0: no limit
};

/// By rank; the same on every rank. Collective.
std::vector<RankCores> cores_of_ranks(comm::HostGroup& world);

struct ThreadChoice {
  int threads = 1;
  std::string reason;  ///< "node7: 2 ranks on 16 cores"
};

/// The maximal number of threads of every rank without two threads on one physical core: one number for all
/// ranks, since bits depend on it. Ranks whose cores overlap divide them evenly.
ThreadChoice choose_threads(std::span<const RankCores> ranks, const comm::Topology& topology);

/// data.threads of each rank that computes with `computing` threads: `threads`, or if that is 0, the cores
/// that choose_threads() leaves, at least 1. Collective.
int loader_threads(comm::HostGroup& world, int threads, int computing);

/// "a thread each", "4 threads each"
std::string threads_each(int threads);

/// More threads than cores.
struct Oversubscription {
  bool by_binding = false;  ///< the node has more cores than these ranks may use
  std::string text;         ///< "node7: ranks 0, 1 are bound to the same core 0, with a thread each"
  std::string remedy;
};

/// The shortage of one node, with `threads` a rank; none if there is a core for each.
std::optional<Oversubscription> oversubscription(std::span<const RankCores> ranks,
                                                 const comm::Topology& topology, int node, int threads);

/// The hardware threads for each thread of a rank, in whole cores. Ranks with the same cores divide them
/// evenly, socket by socket, and each rank divides its part among its threads. No two threads share a core.
/// Empty if there are fewer cores than threads, if the cores are not known, or if another rank has only some
/// of them.
std::vector<CoreSet> cores_of_threads(std::span<const RankCores> ranks, int rank, int threads);

/// The affinity mask of each OpenMP thread of a rank, from cores_of_threads(). Thread 0 gets the cores of
/// all, because OpenMP's library may end threads and start others, which inherit the mask of thread 0. All
/// masks are `given` if `of_threads` is empty.
std::vector<CoreSet> affinity_masks(const std::vector<CoreSet>& of_threads, const CoreSet& given,
                                    int threads);

/// False if train.bind, `bind`, is none, or if LOCKSTEP_BIND=none is in the environment of some rank (mpirun
/// does not pass it to other nodes). Collective. UsageError on every rank if the variable is neither cores
/// nor none.
bool binding_wanted(comm::HostGroup& world, const std::string& bind);

/// The ranks of one node.
struct NodeBinding {
  bool bound = true;  ///< each thread has cores
  std::string text;   ///< "node7: threads are bound to cores, rank 0 to 0-3, rank 1 to 4-7", or why not;
                      ///< empty if each thread may use all cores of its rank
};
NodeBinding binding_of(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                       int threads);

/// Binds the OpenMP threads of the calling thread, their thread 0, to affinity_masks(). Logs the binding of
/// the first node, the first node without binding, or a rank whose system refuses; none of these is an error.
/// Collective.
void bind_threads(comm::HostGroup& world, const Log& log, int threads);

}  // namespace lockstep::train
