// What lockstep doctor checks: a function a subject. Each takes a bounded time, and leaves out of its text
// what it cannot see on an unusual node (a container, another MPI).
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
  std::string text;     ///< what was found
  std::string remedy;   ///< what to do; empty if ok. No figure in it differs between nodes that are alike
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

/// What the run of a configuration needs of a node; zeros without a configuration.
struct Requirements {
  std::uint64_t gradient_bytes = 0;    ///< in shared memory, of all ranks of this node
  std::uint64_t checkpoint_bytes = 0;  ///< of one, about
  int checkpoints = 0;                 ///< kept at once at most
  int threads = 1;                     ///< of a rank
  bool bind = true;                    ///< threads are bound to cores
};

struct Context {
  comm::HostGroup& world;
  std::string run;                        ///< the run directory asked about
  std::string existing;                   ///< it, or the nearest existing directory above it
  const train::Config* config = nullptr;  ///< null if none was given
  Requirements needed = {};
  std::vector<train::RankCores> cores = {};  ///< of all ranks
  int speed_mib = 64;                        ///< most data written to measure the disk's speed
};

/// "12.3 GB", "4.5 MB"
std::string in_bytes(std::uint64_t bytes);
std::string existing_directory(const std::string& run);

// Of this process and its node.
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

// Of the configuration.
Requirements requirements(const Context& context);
/// What `lockstep train --dry-run` says of it: a problem with the error that it would end with. Chooses the
/// device of the session. Collective, the same result on every rank.
Result configuration(const Context& context, Session& session);

// Of all ranks (collective, the same results on every rank); empty where there is nothing to compare.
Results ranks_alike(const Context& context);
Results binding(const Context& context);
Results threads(const Context& context);
Results shared_directory(const Context& context);
Results clocks(const Context& context);

}  // namespace lockstep::cli::checks
