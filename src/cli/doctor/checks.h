// The checks of lockstep doctor, one function for each subject. A check takes bounded time and omits what it
// cannot determine on an unusual node (a container, another MPI).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/threads.h"

namespace lockstep::cli::checks {

enum class Verdict { ok, note, problem };

struct Result {
  Verdict verdict = Verdict::ok;
  std::string text;     ///< the finding
  std::string remedy;   ///< what to do; empty if ok. Equal on equal nodes, so that results can be merged
  std::string subject;  ///< set by the caller
};
using Results = std::vector<Result>;

inline Result ok(std::string text) { return {Verdict::ok, std::move(text), "", ""}; }
inline Result note(std::string text, std::string remedy) {
  return {Verdict::note, std::move(text), std::move(remedy), ""};
}
inline Result problem(std::string text, std::string remedy) {
  return {Verdict::problem, std::move(text), std::move(remedy), ""};
}

/// What a run needs of a node; zeros without a configuration.
struct Requirements {
  std::uint64_t gradient_bytes = 0;    ///< shared memory for gradients of all ranks of this node
  std::uint64_t checkpoint_bytes = 0;  ///< approximate size of one checkpoint
  int checkpoints = 0;                 ///< the maximum number of checkpoints kept
  int threads = 1;                     ///< per rank
  bool bind = true;                    ///< whether threads are bound to cores
};

struct Context {
  comm::HostGroup& world;
  std::string run;                        ///< the run directory to check
  std::string existing;                   ///< `run`, or its nearest parent that exists
  const train::Config* config = nullptr;  ///< null without --config
  Requirements needed = {};
  std::vector<train::RankCores> cores = {};  ///< of all ranks
  int speed_mib = 64;                        ///< maximum MiB written, or read, to measure speeds
};

/// "12.3 GB", "4.5 MB"
std::string in_bytes(std::uint64_t bytes);
std::string existing_directory(const std::string& run);

// Checks of this process and its node.
Result processor(const Context& context);
Result precision(const Context& context);
Result mpi(const Context& context);
Result hdf5(const Context& context);
Result onednn(const Context& context);
Result gpu(const Context& context);
Result nccl(const Context& context);
Result shared_memory(const Context& context);
Result limits(const Context& context);
Result temporary_files(const Context& context);
Result run_directory(const Context& context);
Result disk_speed(const Context& context);
Result file_calls(const Context& context);
Result slurm(const Context& context);
/// Which files of settings jobs/launch.sh reads, by its rules.
Result site_files(const Context& context);

// Checks of the configuration.
/// How fast this node reads data.train, or the beginning of a folder.
Result data_storage(const Context& context);
Requirements requirements(const Context& context);
/// Runs `lockstep train --dry-run`; its error is a problem. Sets the device of the session. Collective, with
/// the same result on every rank.
Result configuration(const Context& context, Session& session);

// Checks of all ranks: collective, with the same results on every rank; empty if there is nothing to compare.
Results ranks_alike(const Context& context);
Results binding(const Context& context);
Results threads(const Context& context);
Results shared_directory(const Context& context);
Results clocks(const Context& context);

}  // namespace lockstep::cli::checks
