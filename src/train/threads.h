// How many threads a rank gets, and whether the cores it may use are enough for them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cores.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// What a rank may use of its machine.
struct RankCores {
  int node = 0;
  CoreSet hardware_threads;        ///< its affinity mask
  CoreSet cores;                   ///< the physical cores of these
  std::vector<CoreSet> of_core{};  ///< the hardware threads core by core (core_by_core())
  int of_machine = 0;              ///< hardware threads that the machine has
  double quota_cores = 0;          ///< cores' worth of time that its control group leaves; 0: no limit
};

/// By rank; the same on every rank. Collective.
std::vector<RankCores> cores_of_ranks(comm::HostGroup& world);

struct ThreadChoice {
  int threads = 1;
  std::string reason;  ///< "node7: 2 ranks on 16 cores"
};

/// The most threads that every rank can have without two of them sharing a core, a hardware thread not being
/// one: one number for all ranks, since bits depend on it. Ranks whose cores overlap share them evenly.
ThreadChoice choose_threads(std::span<const RankCores> ranks, const comm::Topology& topology);

/// "a thread each", "4 threads each"
std::string threads_each(int threads);

/// Threads that have to take turns.
struct Crowding {
  bool bound_away = false;  ///< the machine has more cores than these ranks may use
  std::string text;         ///< "node7: ranks 0, 1 are bound to the same core 0, with a thread each"
  std::string remedy;
};

/// Of one machine, with `threads` a rank; none where there is a core for each.
std::optional<Crowding> crowding(std::span<const RankCores> ranks, const comm::Topology& topology, int node,
                                 int threads);

}  // namespace lockstep::train
