// CpuCommunicator: the ranks of a group and the sums between their CPUs, over MPI or in a world of one.
#pragma once

#include <memory>

#include "lockstep/comm/gradient_transport.h"
#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

/// A group and its transport in one object: a rank that waits for one advances the other.
class CpuCommunicator : public HostGroup, public GradientTransport {
 public:
  HostGroup& group() override { return *this; }
  void progress() override = 0;
  std::unique_ptr<GradientTransport> duplicate() override { return split(0, rank()); }
  /// The ranks of equal colour, ordered by (key, rank). Collective.
  virtual std::unique_ptr<CpuCommunicator> split(int colour, int key) = 0;
};

/// A world of one, without MPI.
std::unique_ptr<CpuCommunicator> make_self_communicator();

/// Owns the process's MPI state. In a process that no launcher (mpirun, srun, PMI) started it does not touch
/// MPI, and the world is a world of one.
class World {
 public:
  /// Initialises MPI if a launcher started this process as a rank. Throws FailureError if MPI cannot start,
  /// and UsageError if the launcher belongs to another MPI.
  World(int& argc, char**& argv);
  /// Finalizes MPI if this object initialised it. Collective, unless an exception unwinds: then MPI stays as
  /// it is, and the process should end with a code that makes the launcher end its peers.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  CpuCommunicator& communicator() { return *communicator_; }

 private:
  bool owns_mpi_ = false;
  std::unique_ptr<CpuCommunicator> communicator_;
};

}  // namespace lockstep::comm
