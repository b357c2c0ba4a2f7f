// The MPI transport: collectives, and setting up what sums need.
#include "comm/mpi_communicator.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/checks.h"
#include "comm/mpi_check.h"
#include "comm/node.h"
#include "comm/timed_barrier.h"
#include "comm/tree_sums.h"
#include "lockstep/base/clock.h"

namespace lockstep::comm {
namespace {

/// Owns an MPI communicator whose errors come back as codes.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm) : comm_(comm) { MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); }
  ~OwnedComm() {
    // Collective, so not while an exception unwinds: the peers may be elsewhere.
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

/// What a waiting rank does between two looks. Its peers are mostly microseconds behind, so at first it just
/// looks again: a yield would hand the core to any busy neighbour for whole milliseconds. After that it
/// yields every time, as the peer it waits for may need this very core.
class Patience {
 public:
  void pause() {
    if (!yielding_) yielding_ = monotonic_s() > start_s_ + look_again_s;
    if (yielding_) sched_yield();
  }

 private:
  static constexpr double look_again_s = 10e-6;
  double start_s_ = monotonic_s();
  bool yielding_ = false;
};

int rank_in(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank", -1);
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size", -1);
  return size;
}

MPI_Comm split_of(MPI_Comm comm, int colour, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, colour, key, &part), "MPI_Comm_split", rank_in(comm));
  return part;
}

/// Nodes renumbered in order of their first rank.
Topology make_topology(const std::vector<int>& node_of_rank, const std::vector<std::string>& host_of_rank) {
  Topology topology;
  std::vector<int> nodes;
  std::vector<int> ranks_on_node;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto node =
        static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node_of_rank[rank]) - nodes.begin());
    if (node == nodes.size()) {
      nodes.push_back(node_of_rank[rank]);
      ranks_on_node.push_back(0);
      topology.host_names.push_back(host_of_rank[rank]);
    }
    topology.node_of_rank.push_back(static_cast<int>(node));
    topology.local_rank_of_rank.push_back(ranks_on_node[node]++);
  }
  return topology;
}

class MpiCommunicator final : public Communicator {
 public:
  /// Takes `comm` over.
  MpiCommunicator(MPI_Comm comm, const std::vector<int>& node_of_rank, const MpiLimits& limits)
      : comm_(comm),
        rank_(rank_in(comm)),
        size_(size_of(comm)),
        limits_(limits),
        node_comm_(split_of(comm, node_of_rank.at(static_cast<std::size_t>(rank_)), rank_)),
        board_(node_comm_.get(), rank_in(node_comm_.get()), size_of(node_comm_.get())),
        topology_(make_topology(node_of_rank, host_names())),
        sums_(comm, rank_, topology_, board_, limits.piece_bytes, 0),
        barrier_(comm, rank_, topology_, TreeSums::tags) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Topology& topology() const override { return topology_; }

  std::unique_ptr<Arena> allocate_arena(std::size_t plane_bytes, int planes) override;

  Ticket start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank_, size_);
    const auto* arena = dynamic_cast<const NodeArena*>(sum.arena);
    if (!arena || arena->owner() != this) {
      throw UsageError("tree sum on rank {}: the arena was allocated by another communicator", rank_);
    }
    const Ticket ticket = sums_.start(sum, *arena, map);
    sums_.progress();
    return ticket;
  }
  void progress() override { sums_.progress(); }
  bool done(Ticket ticket) override {
    if (ticket > sums_.started())
      throw UsageError("tree sum on rank {}: no ticket {} was given out", rank_, ticket);
    sums_.progress();
    return ticket <= sums_.completed();
  }
  void wait(Ticket ticket) override {
    for (Patience patience; !done(ticket);) patience.pause();
  }

  void all_gather(const void* mine, std::size_t bytes, void* all) override;
  std::vector<std::string> all_gather_texts(const std::string& mine) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier(double timeout_s) override {
    barrier_.enter(timeout_s);
    wait_until([this] { return barrier_.passed(); });
  }
  std::unique_ptr<Communicator> split(int colour, int key) override;
  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  /// Started sums go on meanwhile: a peer may wait for our part of one.
  template <class Condition>
  void wait_until(const Condition& condition) {
    for (Patience patience; !condition(); patience.pause()) sums_.progress();
  }
  void finish(MPI_Request request, const char* call) {
    wait_until([&] {
      int finished = 0;
      check_mpi(MPI_Test(&request, &finished, MPI_STATUS_IGNORE), call, rank_);
      return finished != 0;
    });
  }
  void all_gather_on_node(const void* mine, std::size_t bytes, std::byte* all);
  std::vector<std::string> host_names() const;

  OwnedComm comm_;
  int rank_;
  int size_;
  MpiLimits limits_;
  OwnedComm node_comm_;
  NodeBoard board_;
  Topology topology_;
  TreeSums sums_;
  TimedBarrier barrier_;
  std::uint64_t gathers_ = 0;  ///< through the board
};

std::vector<std::string> MpiCommunicator::host_names() const {
  constexpr int length = MPI_MAX_PROCESSOR_NAME;
  std::vector<char> names(static_cast<std::size_t>(size_) * length);
  std::array<char, length> mine{};
  int used = 0;
  check_mpi(MPI_Get_processor_name(mine.data(), &used), "MPI_Get_processor_name", rank_);
  mine.back() = '\0';
  check_mpi(MPI_Allgather(mine.data(), length, MPI_CHAR, names.data(), length, MPI_CHAR, comm_.get()),
            "MPI_Allgather", rank_);
  std::vector<std::string> texts;
  for (std::size_t first = 0; first < names.size(); first += length) texts.emplace_back(&names[first]);
  return texts;
}

std::unique_ptr<Arena> MpiCommunicator::allocate_arena(std::size_t plane_bytes, int planes) {
  struct Wish {
    std::uint64_t plane_bytes;
    std::int64_t planes;
  };
  const Wish wish{plane_bytes, planes};
  std::vector<Wish> wishes(static_cast<std::size_t>(size_));
  all_gather(&wish, sizeof wish, wishes.data());
  for (int rank = 0; rank < size_; ++rank) {
    const Wish& other = wishes[static_cast<std::size_t>(rank)];
    if (other.planes < 1)
      throw UsageError("arena on rank {}: {} planes; at least 1 is needed", rank, other.planes);
    if (other.plane_bytes != wishes.front().plane_bytes) {
      throw UsageError("arena: rank 0 asks for planes of {} bytes, rank {} for {}; all must ask for the same",
                       wishes.front().plane_bytes, rank, other.plane_bytes);
    }
  }
  return std::make_unique<NodeArena>(this, node_comm_.get(), board_.local_rank(), plane_bytes, planes);
}

void MpiCommunicator::all_gather(const void* mine, std::size_t bytes, void* all) {
  if (bytes == 0) return;
  auto* out = static_cast<std::byte*>(all);
  std::byte* my_place = out + bytes * static_cast<std::size_t>(rank_);
  if (topology_.nodes() == 1 && bytes <= NodeFlags::slot_bytes) {
    all_gather_on_node(mine, bytes, out);
    return;
  }
  if (mine != my_place) std::memmove(my_place, mine, bytes);
  if (bytes > limits_.message_bytes) {
    for (int root = 0; root < size_; ++root)
      broadcast(out + bytes * static_cast<std::size_t>(root), bytes, root);
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all, static_cast<int>(bytes), MPI_BYTE, comm_.get(),
                           &request),
            "MPI_Iallgather", rank_);
  finish(request, "MPI_Iallgather");
}

void MpiCommunicator::all_gather_on_node(const void* mine, std::size_t bytes, std::byte* all) {
  // Two slots suffice: whoever fills one for the second time has seen everybody begin the gather in between,
  // and so be done with reading the one before.
  ++gathers_;
  const std::size_t slot = gathers_ % 2;
  std::memcpy(board_.mine().slots[slot], mine, bytes);
  board_.mine().gathered.store(gathers_, std::memory_order_release);
  wait_until([this] { return board_.all_reached(&NodeFlags::gathered, gathers_); });
  for (int rank = 0; rank < size_; ++rank) {
    std::memcpy(all + bytes * static_cast<std::size_t>(rank), board_.of(rank).slots[slot], bytes);
  }
}

std::vector<std::string> MpiCommunicator::all_gather_texts(const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::uint64_t my_bytes = mine.size();
  std::vector<std::uint64_t> bytes(ranks);
  all_gather(&my_bytes, sizeof my_bytes, bytes.data());
  std::vector<std::string> texts(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) texts[rank].resize(bytes[rank]);
  texts[static_cast<std::size_t>(rank_)] = mine;

  const std::uint64_t total = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  if (total == 0) return texts;
  if (total > limits_.message_bytes) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      broadcast(texts[rank].data(), texts[rank].size(), static_cast<int>(rank));
    }
    return texts;
  }
  std::vector<int> counts(bytes.begin(), bytes.end());
  std::vector<int> places(ranks);
  std::exclusive_scan(counts.begin(), counts.end(), places.begin(), 0);
  std::string joined(total, '\0');
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgatherv(mine.data(), static_cast<int>(my_bytes), MPI_BYTE, joined.data(), counts.data(),
                            places.data(), MPI_BYTE, comm_.get(), &request),
            "MPI_Iallgatherv", rank_);
  finish(request, "MPI_Iallgatherv");
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts[rank].assign(joined, static_cast<std::size_t>(places[rank]),
                       static_cast<std::size_t>(counts[rank]));
  }
  return texts;
}

void MpiCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size_)
    throw UsageError("broadcast on rank {}: no rank {} among {}", rank_, root, size_);
  auto* place = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, limits_.message_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(place, static_cast<int>(part), MPI_BYTE, root, comm_.get(), &request), "MPI_Ibcast",
              rank_);
    finish(request, "MPI_Ibcast");
    place += part;
    bytes -= part;
  }
}

std::unique_ptr<Communicator> MpiCommunicator::split(int colour, int key) {
  if (colour < 0) throw UsageError("split on rank {}: colour {} is negative", rank_, colour);
  MPI_Comm part = split_of(comm_.get(), colour, key);
  std::vector<int> nodes(static_cast<std::size_t>(size_of(part)));
  const int mine = topology_.node_of_rank[static_cast<std::size_t>(rank_)];
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, nodes.data(), 1, MPI_INT, part), "MPI_Allgather", rank_);
  return std::make_unique<MpiCommunicator>(part, nodes, limits_);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const std::vector<int>& node_of_rank,
                                                    const MpiLimits& limits) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup", rank_in(parent));
  return std::make_unique<MpiCommunicator>(comm, node_of_rank, limits);
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits) {
  const int rank = rank_in(parent);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", rank);
  int leader = rank;  // the node's first rank stands for the node
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast", rank);
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free", rank);
  std::vector<int> leaders(static_cast<std::size_t>(size_of(parent)));
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, parent), "MPI_Allgather", rank);
  return make_mpi_communicator(parent, leaders, limits);
}

}  // namespace lockstep::comm
