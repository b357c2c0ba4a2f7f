// Environment fingerprint: the program, libraries, configuration and data of a rank as named texts. The ranks
// of a run must have the same; a difference is reported with both ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "train/config.h"
#include "train/run/trainer.h"

namespace lockstep::train {

/// Neither text contains a tab or a line break.
struct FingerprintEntry {
  std::string name, value;
};
using Fingerprint = std::vector<FingerprintEntry>;

/// The running program's version, commit, compiler, build type and digest, and the versions of the loaded
/// HDF5, MPI and math library.
Fingerprint program_fingerprint();
/// The instruction set decides the bits of matrix products. Ranks may differ in it: the run is correct, but
/// its bits depend on which rank computes which shard.
FingerprintEntry instruction_set_entry();
/// Every key of the configuration, and the file_digest() of each input file (data.train, data.eval,
/// train.init).
Fingerprint configuration_fingerprint(const Config& config);

/// "1234 bytes, digest 0123456789abcdef" (XXH3-64 over the digests of its MiBs), or the reason if there is
/// none. Of a file larger than `max_bytes` only the first and last `max_bytes` / 2 are digested: Lockstep's
/// data files have their index there. Never waits for a pipe or device.
std::string file_digest(const std::string& path, std::uint64_t max_bytes);

/// A difference between two ranks.
struct Difference {
  std::string name;
  int rank = 0, other = 0;
  std::string value, other_value;  ///< "nothing" if the rank lacks the entry

  /// "NAME: HOST has A, OTHER has B"; with ranks if both are on one node.
  std::string describe(const comm::Topology& topology) const;
};
/// For each entry that ranks differ in, in order, the first rank that differs from rank 0. The same on every
/// rank; one gather (collective).
std::vector<Difference> differences(comm::HostGroup& world, const Fingerprint& mine);

/// Throws UsageError on every rank, naming two nodes and their first difference, if the ranks of a run differ
/// in program, libraries, configuration or data; and if srun started several tasks that are worlds of one.
/// If only the instruction sets differ, rank 0 warns. Collective; one gather.
void check_same_environment(comm::HostGroup& world, const Config& config, const RunOptions& options);

}  // namespace lockstep::train
