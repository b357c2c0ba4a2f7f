// Communicator: what a group of ranks can do together. A world of one is a Communicator too, so one code path
// serves 1 and N ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/reduction_tree.h"
#include "lockstep/comm/topology.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// Memory that reductions work on: `planes` planes of `plane_bytes` each, 64-byte aligned, zeroed. Allocated
/// once by all ranks together; where ranks share a machine they read each other's planes. Every rank has the
/// same plane_bytes; the number of planes may differ. Destroying it is collective.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* plane(int index) = 0;
  virtual int planes() const = 0;
  virtual std::size_t plane_bytes() const = 0;
};

/// A started reduction. Tickets count up from 1 per communicator; 0 is "none".
using Ticket = std::uint64_t;

/// What a tree sum works on: elements [first, first + count) of type float32 or float64 at the same byte
/// offset of every plane.
struct TreeSum {
  Arena* arena = nullptr;
  std::size_t offset_bytes = 0;  ///< multiple of 64
  std::int64_t count = 0;        ///< elements
  DType dtype = DType::float32;
};

/// All methods but rank/size/topology/progress/done are collective: every rank of the group calls them in the
/// same order. Waiting yields the core. A Communicator belongs to one thread at a time. Failures of the
/// transport throw FailureError with the call's name and the rank.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Topology& topology() const = 0;

  virtual std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) = 0;

  /// Starts a sum over all shards, along the tree. Before the call, plane p of this rank holds the partial
  /// sum of its p-th maximal sub-tree (map.subtrees(rank)); a rank without shards has none. When done, plane
  /// 0 of every rank holds the sum (so every rank needs at least one plane). Returns at once; sums are
  /// carried out in the order started. The memory must not be touched in between.
  virtual Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) = 0;
  /// Moves started sums on, without blocking. Call it often from the computing thread.
  virtual void progress() = 0;
  /// True once the sum and all started before it are complete here. Calls progress().
  virtual bool done(Ticket ticket) = 0;
  virtual void wait(Ticket ticket) = 0;

  /// Every rank's `bytes` bytes in rank order; all must hold size() * bytes.
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;
  /// Texts (any bytes) of any length, in rank order.
  virtual std::vector<std::string> all_gather_texts(const std::string& mine) = 0;
  /// Any size (over 2 GiB too).
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Throws FailureError naming the ranks that did not arrive within timeout_s (<= 0: wait for ever); about a
  /// second later, which it takes to ask. After that the communicator is good for abort only.
  virtual void barrier(double timeout_s = 0) = 0;
  /// The ranks of equal colour, ordered by (key, rank).
  virtual std::unique_ptr<Communicator> split(int colour, int key) = 0;
  /// Ends every process of the world with this exit code. Does not return.
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// A world of one, without MPI.
std::unique_ptr<Communicator> make_self_communicator();

/// Owns the process's MPI state. Started alone (not under mpirun, srun or PMI) it does not touch MPI at all
/// and the world is a world of one.
class World {
 public:
  /// Initialises MPI if this process was launched as a rank. Throws FailureError if MPI cannot start, and
  /// UsageError if the launcher belongs to another MPI.
  World(int& argc, char**& argv);
  /// Finalizes MPI if this object initialised it. Collective, unless an exception unwinds: then MPI stays as
  /// it is, and the process should end with a code that makes the launcher end its peers.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Communicator& communicator() { return *communicator_; }

 private:
  bool owns_mpi_ = false;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace lockstep::comm
