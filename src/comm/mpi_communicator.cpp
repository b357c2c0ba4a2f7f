// The group and the transport over MPI: collectives on the host, and the starts of sums.
#include "comm/mpi_calls.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/cores.h"
#include "base/progress.h"
#include "base/thread.h"
#include "comm/collective.h"
#include "comm/collective_queue.h"
#include "comm/node.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

/// Nodes are renumbered in order of their first rank.
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

/// The ranks on the node of `rank`, itself included, ascending.
std::vector<int> neighbours(const std::vector<int>& node_of_rank, int rank) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < node_of_rank.size(); ++other) {
    if (node_of_rank[other] == node_of_rank[static_cast<std::size_t>(rank)])
      ranks.push_back(static_cast<int>(other));
  }
  return ranks;
}

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
  MPI_Comm group = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, colour, key, &group), "MPI_Comm_split", rank_in(comm));
  return group;
}

constexpr unsigned abort_timeout_s = 10;

/// MPI_Abort talks to a daemon that may be gone or stuck.
void end_without_mpi_after(unsigned seconds, int exit_code) {
  static volatile std::sig_atomic_t code = exit_code;
  code = exit_code;
  std::signal(SIGALRM, [](int) { ::_exit(code); });
  ::alarm(seconds);
}

class MpiCommunicator final : public CpuCommunicator {
 public:
  /// Takes ownership of `comm`.
  MpiCommunicator(MPI_Comm comm, const std::vector<int>& node_of_rank, const MpiLimits& limits)
      : comm_(comm),
        rank_(rank_in(comm)),
        size_(size_of(comm)),
        limits_(limits),
        node_comm_(split_of(comm, node_of_rank.at(static_cast<std::size_t>(rank_)), rank_)),
        control_(node_comm_.get(), rank_in(node_comm_.get()), neighbours(node_of_rank, rank_)),
        topology_(make_topology(node_of_rank, host_names())),
        collectives_(comm, rank_, topology_, control_, limits.chunk_bytes, 0) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Topology& topology() const override { return topology_; }
  bool rounds(DType comm_dtype) const override { return bytes_of(comm_dtype) == 2 && topology_.nodes() > 1; }

  std::unique_ptr<FlatBuffer> allocate_buffer(std::size_t accumulator_bytes, int accumulators) override;

  Work start_tree_sum(const TreeSum& sum, const ShardMap& map) override {
    check_tree_sum(sum, map, rank_, size_);
    return start(Collective::Kind::sum, sum, &map, {});
  }
  Work start_reduce_scatter(const TreeSum& sum, const ShardMap& map, const Slices& slices) override {
    check_tree_sum(sum, map, rank_, size_);
    check_slices(sum, slices, rank_, size_);
    return start(Collective::Kind::reduce_scatter, sum, &map, slices);
  }
  Work start_all_gather(const TreeSum& vector, const Slices& slices) override {
    check_elements(vector, rank_);
    check_slices(vector, slices, rank_, size_);
    return start(Collective::Kind::all_gather, vector, nullptr, slices);
  }
  void progress() override { collectives_.progress(); }
  bool done(Work work) override {
    check_started(work, collectives_.started(), rank_);
    collectives_.progress();
    return work <= collectives_.completed();
  }
  void order_after(Work work) override {
    if (done(work)) return;
    progress::Polling polling;
    for (Backoff backoff(oversubscribed_); !done(work); polling.count_poll()) {
      backoff.pause();
      if (backoff.yielding()) check_calls();
    }
  }

  void all_gather(const void* mine, std::size_t bytes, void* all) override;
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override;
  void all_to_all(std::span<const std::span<const std::byte>> to_rank,
                  std::span<const std::span<std::byte>> from_rank) override;
  std::vector<std::string> all_gather_texts(const std::string& mine) override;
  void broadcast(void* data, std::size_t bytes, int root) override;
  void barrier(double timeout_s) override;
  std::unique_ptr<CpuCommunicator> split(int colour, int key) override;
  void enter(std::string_view phrase, std::string_view compared) override;
  void leave() override { calls_.pop_back(); }
  void check_calls() override {
    control_.check_same(&RankFlags::calls, entered_);
    if (!calls_.empty()) control_.check_order(gathers_, collectives_.started(), calls_.back());
  }
  [[noreturn]] void abort(int exit_code) override {
    std::fflush(nullptr);
    end_without_mpi_after(abort_timeout_s, exit_code);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  Work start(Collective::Kind kind, const TreeSum& sum, const ShardMap* map, const Slices& slices);
  /// Advances started collectives meanwhile: a peer may wait for our part of one.
  template <class Condition>
  void wait_until(const Condition& condition) {
    wait_until(condition, [this] { check_calls(); });
  }
  template <class Condition, class Check>
  void wait_until(const Condition& condition, const Check& check) {
    progress::Polling polling;
    for (Backoff backoff(oversubscribed_); !condition(); backoff.pause()) {
      polling.count_poll();
      collectives_.progress();
      if (backoff.yielding()) check();
    }
  }
  bool finished(std::span<MPI_Request> requests, const char* call) const {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              call, rank_);
    return done != 0;
  }
  /// Ranks of all nodes take part and compare their calls afterwards: one node alone must not throw before
  /// that.
  template <class InTime = std::identity>
  void finish(std::span<MPI_Request> requests, const char* call, const InTime& in_time = {}) {
    const auto check = [&] {
      try {
        control_.check();
      } catch (const Error&) {  // in a later call: all have begun this one, whose memory MPI still writes to
        wait_until([&] { return finished(requests, call); }, [] {});
        throw;
      }
    };
    wait_until([&] { return in_time(finished(requests, call)); }, check);
  }
  /// Begins every collective of host memory, under this phrase unless it is within another call: shows it to
  /// the other ranks, with this rank's bytes if they fit (max_bytes_along), and waits for them. Throws
  /// UsageError if they begin something else, and FailureError if they do not arrive within timeout_s (0: no
  /// limit).
  void begin(Collective collective, const char* phrase, const void* mine = nullptr, std::size_t bytes = 0,
             double timeout_s = 0);
  /// The bytes that a rank sent along.
  std::byte* along(int of) {
    return nodes_ == 1 ? control_.of(of).slots[gathers_ % 2] : record(of) + sizeof(std::uint64_t);
  }
  std::size_t max_bytes_along() const {
    return nodes_ == 1 ? RankFlags::slot_bytes : record_bytes - sizeof(std::uint64_t);
  }
  std::byte* record(int of) { return records_.data() + record_bytes * static_cast<std::size_t>(of); }
  /// Throws the error about a difference between nodes. Collective.
  void throw_difference(const Collective& mine);
  template <class InTime = std::identity>
  void gather_in_place(void* all, std::size_t bytes, const InTime& in_time = {});
  void send_to_all(void* data, std::size_t bytes, int root);
  std::vector<std::string> host_names() const;

  OwnedComm comm_;
  int rank_;
  int size_;
  MpiLimits limits_;
  OwnedComm node_comm_;
  NodeControl control_;
  Topology topology_;
  CollectiveQueue collectives_;
  bool oversubscribed_ = oversubscribed(node_comm_.get(), process_cores());
  std::vector<CallName> calls_;  ///< current calls of this rank, the outermost first
  std::uint64_t entered_ = 0;    ///< calls so far
  std::uint64_t gathers_ = 0;    ///< gathers and other collectives of host memory so far
  std::uint64_t flat_buffers_ = 0;
  /// Between nodes a collective of host memory begins with one message a rank: its signature, and enough
  /// bytes for most step headers.
  static constexpr std::size_t record_bytes = 256;
  const int nodes_ = topology_.nodes();
  std::vector<std::byte> records_ =
      std::vector<std::byte>(nodes_ == 1 ? 0 : record_bytes * static_cast<std::size_t>(size_));
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

std::unique_ptr<FlatBuffer> MpiCommunicator::allocate_buffer(std::size_t accumulator_bytes,
                                                             int accumulators) {
  const NamedCall call(*this, "allocates a FlatBuffer");
  agree_on_buffer(*this, accumulator_bytes, accumulators);
  const progress::Waiting waiting;
  return std::make_unique<NodeBuffer>(this, ++flat_buffers_, node_comm_.get(), control_.local_rank(),
                                      accumulator_bytes, accumulators);
}

Work MpiCommunicator::start(Collective::Kind kind, const TreeSum& sum, const ShardMap* map,
                            const Slices& slices) {
  const auto* flat_buffer = dynamic_cast<const NodeBuffer*>(sum.flat_buffer);
  if (!flat_buffer || flat_buffer->owner() != this) {
    throw UsageError("tree sum on rank {}: the flat buffer was allocated by another communicator", rank_);
  }
  const Work work = collectives_.start(kind, sum, *flat_buffer, map, slices);  // or throws
  if (calls_.empty()) const NamedCall call(*this, "starts a sum or all-gather of a FlatBuffer");
  collectives_.progress();
  return work;
}

/// A rank that unwinds reports nothing: its error is the cause of the others' errors.
void MpiCommunicator::enter(std::string_view phrase, std::string_view compared) {
  CallName call;
  constexpr std::size_t room = sizeof call.phrase - 1;
  if (calls_.empty()) {
    phrase.copy(call.phrase, room);
  } else {
    fmt::format_to_n(call.phrase, room, "{}{}{}", calls_.back().phrase, within, phrase);
    call.digest = calls_.back().digest;
  }
  call.digest = hash_of(call.digest, purpose_of(compared));
  calls_.push_back(call);
  if (std::uncaught_exceptions() == 0)
    control_.begin(&RankFlags::calls, ++entered_, {.kind = Collective::Kind::barrier, .call = call});
}

void MpiCommunicator::begin(Collective collective, const char* phrase, const void* mine, std::size_t bytes,
                            double timeout_s) {
  if (calls_.empty()) {
    const NamedCall call(*this, phrase);
    return begin(collective, phrase, mine, bytes, timeout_s);
  }
  control_.check();
  collective.call = calls_.back();
  collective.flat_buffer = collectives_.started();
  const double deadline_s = timeout_s > 0 ? monotonic_s() + timeout_s : 0;
  const auto in_time = [&](bool done) {
    if (!done && timeout_s > 0 && monotonic_s() > deadline_s)
      throw FailureError("barrier on rank {}: not all {} ranks arrived within {} s", rank_, size_, timeout_s);
    return done;
  };
  // Two slots suffice: a rank that fills one again has seen all ranks begin the gather in between, so they
  // have read the one before.
  ++gathers_;
  if (bytes > 0 && bytes <= max_bytes_along()) std::memcpy(along(rank_), mine, bytes);
  if (nodes_ == 1) {
    control_.begin(&RankFlags::gathers, gathers_, collective);
    wait_until([&] { return in_time(control_.all_began(&RankFlags::gathers, gathers_)); });
    return control_.check_same(&RankFlags::gathers, gathers_);
  }
  const std::uint64_t signature = collective.signature();
  std::memcpy(record(rank_), &signature, sizeof signature);
  gather_in_place(records_.data(), record_bytes, in_time);
  for (int rank = 1; rank < size_; ++rank) {
    if (std::memcmp(record(rank), record(0), sizeof signature) != 0) throw_difference(collective);
  }
}

template <class InTime>
void MpiCommunicator::gather_in_place(void* all, std::size_t bytes, const InTime& in_time) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all, static_cast<int>(bytes), MPI_BYTE, comm_.get(),
                           &request),
            "MPI_Iallgather", rank_);
  finish({&request, 1}, "MPI_Iallgather", in_time);
}

void MpiCommunicator::throw_difference(const Collective& mine) {
  std::vector<Collective> all(static_cast<std::size_t>(size_));
  all[static_cast<std::size_t>(rank_)] = mine;
  gather_in_place(all.data(), sizeof mine);
  const auto other =
      std::ranges::find_if(all, [&](const Collective& any) { return any.signature() != all[0].signature(); });
  control_.fail(difference(gathers_, 0, all[0], static_cast<int>(other - all.begin()), *other));
}

void MpiCommunicator::all_gather(const void* mine, std::size_t bytes, void* all) {
  begin({.kind = Collective::Kind::host_gather, .count = static_cast<std::int64_t>(bytes)},
        "calls HostGroup::all_gather", mine, bytes);
  if (bytes == 0) return;
  auto* out = static_cast<std::byte*>(all);
  if (bytes <= max_bytes_along()) {
    for (int rank = 0; rank < size_; ++rank)
      std::memcpy(out + bytes * static_cast<std::size_t>(rank), along(rank), bytes);
    return;
  }
  std::byte* const own = out + bytes * static_cast<std::size_t>(rank_);
  if (mine != own) std::memmove(own, mine, bytes);
  if (bytes <= limits_.message_bytes) return gather_in_place(all, bytes);
  for (int root = 0; root < size_; ++root)
    send_to_all(out + bytes * static_cast<std::size_t>(root), bytes, root);
}

void MpiCommunicator::all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank,
                                         void* all) {
  check_sizes(bytes_of_rank.size(), rank_, size_);
  const std::size_t total = std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), std::size_t{0});
  const std::uint64_t sizes = std::accumulate(
      bytes_of_rank.begin(), bytes_of_rank.end(), std::uint64_t{1},
      [](std::uint64_t digest, std::size_t bytes) { return std::uint64_t{hash_of(digest, bytes)}; });
  begin({.kind = Collective::Kind::unequal_host_gather,
         .count = static_cast<std::int64_t>(total),
         .slices = sizes},
        "calls HostGroup::all_gather_unequal");
  if (total == 0) return;
  std::vector<std::size_t> offsets(bytes_of_rank.size());
  std::exclusive_scan(bytes_of_rank.begin(), bytes_of_rank.end(), offsets.begin(), std::size_t{0});
  auto* out = static_cast<std::byte*>(all);
  const auto me = static_cast<std::size_t>(rank_);
  std::byte* const own = out + offsets[me];
  if (bytes_of_rank[me] > 0 && mine != own) std::memmove(own, mine, bytes_of_rank[me]);
  if (total > limits_.message_bytes) {
    for (std::size_t root = 0; root < offsets.size(); ++root)
      send_to_all(out + offsets[root], bytes_of_rank[root], static_cast<int>(root));
    return;
  }
  const std::vector<int> int_counts(bytes_of_rank.begin(), bytes_of_rank.end());
  const std::vector<int> int_offsets(offsets.begin(), offsets.end());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all, int_counts.data(), int_offsets.data(), MPI_BYTE,
                            comm_.get(), &request),
            "MPI_Iallgatherv", rank_);
  finish({&request, 1}, "MPI_Iallgatherv");
}

/// Messages between the pairs that have something to send: with many ranks most have nothing.
void MpiCommunicator::all_to_all(std::span<const std::span<const std::byte>> to_rank,
                                 std::span<const std::span<std::byte>> from_rank) {
  check_sizes(to_rank.size(), rank_, size_);
  check_sizes(from_rank.size(), rank_, size_);
  begin({.kind = Collective::Kind::all_to_all}, "calls HostGroup::all_to_all");
  constexpr int tag = CollectiveQueue::tags;  // the sums use those below
  std::vector<MPI_Request> requests;
  const auto for_messages = [&](std::size_t bytes, const auto& start) {
    for (std::size_t at = 0; at < bytes; at += limits_.message_bytes) {
      requests.push_back(MPI_REQUEST_NULL);
      check_mpi(start(at, static_cast<int>(std::min(bytes - at, limits_.message_bytes)), &requests.back()),
                "HostGroup::all_to_all", rank_);
    }
  };
  for (int peer = 0; peer < size_; ++peer) {
    const auto to = to_rank[static_cast<std::size_t>(peer)];
    const auto from = from_rank[static_cast<std::size_t>(peer)];
    if (peer == rank_) {
      if (!to.empty()) std::memmove(from.data(), to.data(), to.size());
      continue;
    }
    for_messages(from.size(), [&](std::size_t at, int bytes, MPI_Request* request) {
      return MPI_Irecv(from.data() + at, bytes, MPI_BYTE, peer, tag, comm_.get(), request);
    });
    for_messages(to.size(), [&](std::size_t at, int bytes, MPI_Request* request) {
      return MPI_Isend(to.data() + at, bytes, MPI_BYTE, peer, tag, comm_.get(), request);
    });
  }
  finish(requests, "HostGroup::all_to_all");
}

std::vector<std::string> MpiCommunicator::all_gather_texts(const std::string& mine) {
  const std::vector<std::size_t> bytes = all_gather_values(*this, mine.size());
  std::string joined(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}), '\0');
  all_gather_unequal(mine.data(), bytes, joined.data());
  std::vector<std::string> texts;
  std::size_t offset = 0;
  for (const std::size_t length : bytes) {
    texts.push_back(joined.substr(offset, length));
    offset += length;
  }
  return texts;
}

void MpiCommunicator::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size_)
    throw UsageError("broadcast on rank {}: root {} is out of range; there are {} ranks", rank_, root, size_);
  begin({.kind = Collective::Kind::broadcast, .shards = root, .count = static_cast<std::int64_t>(bytes)},
        "calls HostGroup::broadcast");
  send_to_all(data, bytes, root);
}

void MpiCommunicator::send_to_all(void* data, std::size_t bytes, int root) {
  auto* chunk = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t chunk_bytes = std::min(bytes, limits_.message_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(chunk, static_cast<int>(chunk_bytes), MPI_BYTE, root, comm_.get(), &request),
              "MPI_Ibcast", rank_);
    finish({&request, 1}, "MPI_Ibcast");
    chunk += chunk_bytes;
    bytes -= chunk_bytes;
  }
}

void MpiCommunicator::barrier(double timeout_s) {
  begin({.kind = Collective::Kind::barrier}, "calls HostGroup::barrier", nullptr, 0, timeout_s);
}

std::unique_ptr<CpuCommunicator> MpiCommunicator::split(int colour, int key) {
  if (colour < 0) throw UsageError("split on rank {}: colour {} is negative", rank_, colour);
  begin({.kind = Collective::Kind::split}, "calls CpuCommunicator::split");
  const progress::Waiting waiting;
  MPI_Comm group = split_of(comm_.get(), colour, key);
  std::vector<int> nodes(static_cast<std::size_t>(size_of(group)));
  const int mine = topology_.node_of_rank[static_cast<std::size_t>(rank_)];
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, nodes.data(), 1, MPI_INT, group), "MPI_Allgather", rank_);
  return std::make_unique<MpiCommunicator>(group, nodes, limits_);
}

}  // namespace

std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const std::vector<int>& node_of_rank,
                                                       const MpiLimits& limits) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup", rank_in(parent));
  return std::make_unique<MpiCommunicator>(comm, node_of_rank, limits);
}

std::unique_ptr<CpuCommunicator> make_mpi_communicator(MPI_Comm parent, const MpiLimits& limits) {
  const int rank = rank_in(parent);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", rank);
  int leader = rank;  // the first rank identifies the node
  check_mpi(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast", rank);
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free", rank);
  std::vector<int> leaders(static_cast<std::size_t>(size_of(parent)));
  check_mpi(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, parent), "MPI_Allgather", rank);
  return make_mpi_communicator(parent, leaders, limits);
}

}  // namespace lockstep::comm
