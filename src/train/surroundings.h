// Surroundings: what each rank runs on and from (program, libraries, configuration, data), and where ranks
// of one run differ in it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "train/config.h"
#include "train/trainer.h"

namespace lockstep::train {

/// Something that should be the same on every rank. Neither text holds a tab or a line break.
struct Fact {
  std::string name, value;
};
using Facts = std::vector<Fact>;

/// The running program's version, commit, compiler, build type and digest, and the versions of HDF5, MPI and
/// oneDNN that were loaded.
Facts program_facts();
/// What decides the bits of products on this machine. Ranks may differ in it: the run is right, but its bits
/// depend on who computes which shard.
Fact instruction_set_fact();
/// Every key of the configuration, and of each file that it reads (data.train, data.eval, train.init) what
/// file_digest says.
Facts configuration_facts(const Config& config);

/// "1234 bytes, digest 0123456789abcdef" (XXH3-64 over those of its MiBs), or why there is none. Of more than
/// `most_bytes`, size and the digest of the first and last `most_bytes` / 2: in our data files the index is
/// there. Never waits for a pipe or device.
std::string file_digest(const std::string& path, std::uint64_t most_bytes);

/// Two ranks and what they have.
struct Difference {
  std::string name;
  int rank = 0, other = 0;
  std::string value, other_value;  ///< "nothing" for a fact that the rank has not got

  /// "NAME: HOST has A, OTHER has B"; with ranks where both are on one host.
  std::string describe(const comm::Topology& topology) const;
};
/// Per fact that is not the same on all ranks, the first rank that differs from rank 0; in the order of the
/// facts. The same on every rank; one gather (collective).
std::vector<Difference> differences(comm::HostGroup& world, const Facts& mine);

/// Throws UsageError on every rank, naming two nodes and the first thing they differ in, if the ranks of a
/// run do not have the same program, libraries, configuration and data; and if this is a world of one that
/// srun started next to others like it. Where only the instruction set differs, rank 0 warns. Collective; one
/// gather.
void check_alike(comm::HostGroup& world, const Config& config, const RunOptions& options);

}  // namespace lockstep::train
