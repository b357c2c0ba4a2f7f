// Which of its machine's cores each thread of a rank is bound to.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"
#include "train/threads.h"

namespace lockstep::train {

/// The hardware threads of each thread of a rank, by whole cores: ranks that were given the same cores share
/// them out evenly, socket by socket, and a rank among its threads. No two threads have a core in common.
/// None where cores are fewer than threads, or not known, or another's that was given others, too.
std::vector<CoreSet> shares_of(std::span<const RankCores> ranks, int rank, int threads);

/// What each OpenMP thread of a rank may run on: its share, and the first, which starts the others, all
/// shares of its rank: OpenMP's library may end threads and start others, which begin where their creator may
/// run. All that was given where there are no shares.
std::vector<CoreSet> masks_of(const std::vector<CoreSet>& shares, const CoreSet& given, int threads);

/// False where train.bind, `bind`, is none, or LOCKSTEP_BIND=none is in the environment of some rank: mpirun
/// does not pass it on to other machines. Collective. UsageError on every rank if it is anything but cores or
/// none there.
bool binding_wanted(comm::HostGroup& world, const std::string& bind);

/// The ranks of one machine.
struct NodeBinding {
  bool bound = true;  ///< each has shares
  std::string text;   ///< "node7: threads are bound to cores, rank 0 to 0-3, rank 1 to 4-7", or why not;
                      ///< empty if each has all that its rank was given
};
NodeBinding binding_of(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                       int threads);

/// Binds the OpenMP threads of the calling thread, which is the first of them, by masks_of(). Says what it
/// did on the first machine, or the first where ranks are not bound; a system that refuses is said, too, and
/// is no error. Collective.
void bind_threads(comm::HostGroup& world, const Log& log, int threads);

}  // namespace lockstep::train
