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
#include "lockstep/comm/slices.h"
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
  /// Collectives that nobody will wait for may still use it. True: what is left to do is to destroy it, which
  /// is not collective any more and leaves the memory to the end of the process. False: it must not be
  /// destroyed.
  virtual bool leave() { return false; }
};

/// A started collective: a sum, a reduce-scatter or an all-gather. Tickets count up from 1 per communicator;
/// 0 is "none".
using Ticket = std::uint64_t;

/// What a collective works on: `count` elements at the same byte offset of every plane.
struct TreeSum {
  Arena* arena = nullptr;
  std::size_t offset_bytes = 0;  ///< multiple of 64
  std::int64_t count = 0;        ///< elements
  DType dtype = DType::float32;  ///< float32 or float64; what is only gathered may be of any type
  /// bfloat16 or float16: the partial sums that travel are rounded to it, and so is the result, once, before
  /// anyone uses it; all ranks end with the same values. On CPUs what travels goes between nodes (ranks of
  /// one read each other's memory, so with a single node nothing is rounded) and additions stay in float32;
  /// for GPUs see nccl.h. Whether a communicator rounds anything it tells itself: rounds(). float64 sums and
  /// all-gathers ignore it.
  DType comm_dtype = DType::float32;
};

/// All methods but rank/size/topology/rounds/progress/done/async_error are collective: every rank of the
/// group calls them in the same order. Waiting yields the core. A Communicator belongs to one thread at a
/// time. Failures of the transport throw FailureError with the call's name and the rank. Ranks of one node
/// that start different collectives under one ticket, or gather different numbers of bytes, get the same
/// FailureError, which shows both sides; nothing is written then, and the communicator is good for abort
/// only.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Topology& topology() const = 0;
  /// Whether sums with this TreeSum::comm_dtype are rounded to it anywhere. The same on all ranks.
  virtual bool rounds(DType comm_dtype) const = 0;

  virtual std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) = 0;

  /// Starts a sum over all shards, along the tree. Before the call, plane p of this rank holds the partial
  /// sum of its p-th maximal sub-tree (map.subtrees(rank)); a rank without shards has none. When done, plane
  /// 0 of every rank holds the sum (so every rank needs at least one plane). Returns at once; collectives are
  /// carried out in the order started. The memory must not be touched in between, by another
  /// collective either.
  virtual Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) = 0;
  /// As above, with the same bits, but when done only the elements that this rank owns hold the sum, in its
  /// plane 0. What the others of its planes hold then is unspecified.
  virtual Ticket start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) = 0;
  /// Plane 0 of each rank holds the elements it owns; when done, plane 0 of every rank holds all of them.
  /// Bytes are copied, whatever they are.
  virtual Ticket start_all_gather(const TreeSum& vector, const Slices& slices) = 0;
  /// Moves what has been started on, without blocking. Call it often from the computing thread.
  virtual void progress() = 0;
  /// True once the collective and all started before it are complete here. Calls progress().
  virtual bool done(Ticket ticket) = 0;
  virtual void wait(Ticket ticket) = 0;
  /// Whether collectives may be started in a recording of what they work on (kernels::Recorder): then they
  /// are made when it is replayed, every rank must replay what it recorded at the same time as all others,
  /// and their tickets are good for nothing but wait() in the same recording.
  virtual bool records() const { return false; }
  /// A ticket for what the device has been asked for so far, collectives of replayed recordings included. To
  /// be complete, it must have been waited for by all of these.
  virtual Ticket behind_recording() { return 0; }
  /// What the transport has found broken by itself while this rank waits, or nothing. Any thread may ask.
  virtual std::string async_error() const { return {}; }

  /// Every rank's `bytes` bytes in rank order; all must hold size() * bytes.
  virtual void all_gather(const void* mine, std::size_t bytes, void* all) = 0;
  /// bytes_of_rank[r] bytes of each rank r, one after another; every rank passes the same sizes. `mine` may
  /// be the rank's place in `all`. Any size (over 2 GiB too).
  virtual void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank,
                                  void* all) = 0;
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

/// Returns when the collective is complete. On the CPU that is what wait() does; a device's wait() only lets
/// what is asked for afterwards follow the collective. Throws FailureError if the transport finds out
/// meanwhile that it is broken.
void complete(Communicator& communicator, Ticket ticket);

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
