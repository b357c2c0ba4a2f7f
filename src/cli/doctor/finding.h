// Private to the verb: what doctor found about one subject, and what it looks at.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "train/threads.h"

namespace lockstep::cli::checkup {

enum class Verdict { ok, note, problem };

struct Finding {
  std::string subject;
  Verdict verdict = Verdict::ok;
  std::string text;    ///< what was found
  std::string remedy;  ///< what to do; empty if ok. Holds no figure that differs between like machines.
};
using Findings = std::vector<Finding>;

std::string_view word(Verdict verdict);
Verdict verdict_of(std::string_view word);

/// What a run would need; zeros where no configuration was given.
struct Needs {
  std::uint64_t gradient_bytes = 0;    ///< of all ranks of this machine, in shared memory
  std::uint64_t checkpoint_bytes = 0;  ///< of one, about
  int checkpoints = 0;                 ///< kept at once at most
  int threads = 1;                     ///< of a rank
  bool bind = true;                    ///< each to cores of its own
};

/// What a machine's probes look at.
struct Scene {
  std::string run;    ///< the run directory asked about
  std::string place;  ///< it, or the nearest directory above it that is there
  Needs needs;
  int ranks_here = 1;     ///< on this machine
  bool launched = false;  ///< MPI runs
  int speed_mib = 64;     ///< of data at most, for the disk's speed
};

/// The nearest directory that is there: `run` or one above it.
std::string place_of(const std::string& run);
/// "12.3 GB", "4.5 MB"
std::string in_bytes(std::uint64_t bytes);

// Each probe looks at one subject, on its own, for a bounded time. What it cannot see on an odd machine (no
// /sys, a container, another MPI) is left out of its text.
Finding processor(const Scene& scene);
Finding mpi(const comm::HostGroup& world);
Finding hdf5(const Scene& scene);
Finding onednn(const Scene& scene);
Finding gpus(const Scene& scene);
Finding nccl(const Scene& scene);
Finding shared_memory(const Scene& scene);
Finding limits(const Scene& scene);
Finding free_space(const Scene& scene);
Finding disk_speed(const Scene& scene);
Finding file_calls(const Scene& scene);
Finding temporary_files(const Scene& scene);
Finding slurm(const Scene& scene);

/// The probe's finding; a problem of this subject if it throws.
Finding guarded(const std::string& subject, const std::function<Finding()>& probe);

// Questions to all ranks together (collective; none where there is nothing to compare). Every rank gets the
// same findings.
/// Not collective: `cores` are of all ranks.
Findings binding(const comm::HostGroup& world, const std::vector<train::RankCores>& cores,
                 const Needs& needs);
Findings clocks(comm::HostGroup& world);
Findings shared_directory(comm::HostGroup& world, const Scene& scene);

/// All ranks' findings: gathered, those of like machines put together, printed by rank 0. True if one is a
/// problem (collective). `common`: the same on every rank.
bool report(comm::HostGroup& world, const Findings& mine, const Findings& common, bool json);

}  // namespace lockstep::cli::checkup
