// CollectiveQueue: the collectives of one communicator between CPUs (tree sums and their two halves,
// reduce-scatter and all-gather), from their start until every rank of the node has done its part.
//
// Every element has an owner. On one node a rank waits until all have started, adds the elements it owns
// along the tree from everyone's accumulators and writes the sum to everyone's accumulator 0. No other rank
// uses these elements, so no lock is needed. With several nodes, every node but the owner's has a leader for
// the element. Ranks work in chunks, each in three stages, so that adding and sending overlap:
//
//            owner                                      leader of another node
//   gather   receives the nodes' partial sums           adds its node's partial sum (SumPlan), sends it
//   add      adds them along the tree for its node,     begins to receive the sum
//            begins to send the sum
//   return   (the sum is on its way)                    writes the sum to its node's accumulators
//
// A reduce-scatter returns nothing, and an all-gather gathers nothing.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "comm/node.h"
#include "comm/sum_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// Memory for intermediate results, reused.
class Workspace {
 public:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t rounded_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// Grows to `bytes`, 64-byte aligned. Growth loses the contents.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded_up(bytes))));
    if (!memory_) throw FailureError("tree sum: out of memory for a buffer of {} bytes", bytes);
    bytes_ = bytes;
  }
  /// Releases the memory without freeing it.
  void abandon() { static_cast<void>(memory_.release()); }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

/// The MPI messages between nodes of one collective. Those of a chunk have consecutive numbers.
class Messages {
 public:
  Messages(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Forgets all messages, which must have ended. Errors about the next ones name `work`.
  void begin(std::uint64_t work);
  void reserve(std::size_t messages);
  std::size_t capacity() const { return requests_.capacity(); }
  bool in_flight() const { return in_flight_ > 0; }

  /// Adds the messages of a chunk; returns the number of the first.
  std::size_t add(std::size_t messages, std::size_t chunk);
  void send(std::size_t message, const std::byte* data, std::size_t bytes, int to, int tag);
  void receive(std::size_t message, std::byte* data, std::size_t bytes, int from, int tag);
  /// The chunks of the messages that have ended since the last call, one entry a message. Throws UsageError
  /// if another rank's message has another size than expected.
  std::span<const std::size_t> collect();

 private:
  struct Message {
    std::size_t chunk = 0;
    std::size_t received_bytes = 0;  ///< 0 for a message that is sent
  };
  void check(const Message& message, const MPI_Status& status, bool failed) const;

  MPI_Comm comm_;
  int rank_;
  std::uint64_t work_ = 0;
  std::size_t in_flight_ = 0;
  std::vector<MPI_Request> requests_;  ///< by message
  std::vector<Message> messages_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> chunks_;
};

/// The common data of all collectives of a communicator. The topology and the control block must outlive it.
struct CollectiveContext {
  CollectiveContext(MPI_Comm comm, int rank, const Topology& topology, const NodeControl& control,
                    std::size_t chunk_bytes);

  MPI_Comm comm;
  int rank;
  int node;
  const Topology& topology;
  const NodeControl& control;
  std::size_t chunk_bytes;
  std::vector<std::vector<int>> ranks_of_node;

  int ranks() const { return static_cast<int>(topology.node_of_rank.size()); }
  int nodes() const { return topology.nodes(); }
  int node_of(int other) const { return topology.node_of_rank[static_cast<std::size_t>(other)]; }
  int local_rank_of(int other) const { return topology.local_rank_of_rank[static_cast<std::size_t>(other)]; }
  /// The rank of the node that sends to and receives from `owner`, a rank of another node.
  int leader(int on_node, int owner) const;
};

/// Scratch memory of one addition.
struct SumScratch {
  Workspace blocks;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

/// One collective that runs. The next one reuses its memory.
class ActiveCollective {
 public:
  struct Request {
    Collective::Kind kind = Collective::Kind::sum;
    TreeSum sum;
    const NodeBuffer* flat_buffer = nullptr;
    const SumPlan* plan = nullptr;  ///< none for an all-gather
    Slices slices;                  ///< empty: even slices
    Collective collective() const;
  };
  struct Capacity {
    std::size_t chunks = 0;
    std::size_t messages = 0;
    std::size_t buffer_bytes = 0;
  };

  explicit ActiveCollective(const CollectiveContext& context);
  /// After a failure messages may still arrive, so the process keeps their memory until it ends.
  ~ActiveCollective() {
    if (messages_.in_flight()) buffer_.abandon();
  }
  ActiveCollective(const ActiveCollective&) = delete;
  ActiveCollective& operator=(const ActiveCollective&) = delete;

  /// Begins the collective, which uses the tags `tag` and `tag` + 1 until it has finished.
  void begin(Work work, Request request, int tag);
  /// Does everything that is possible now; true if there was anything to do. Throws UsageError if ranks have
  /// started different collectives.
  bool advance(SumScratch& scratch);
  /// Whether this rank has done its part.
  bool finished() const { return unfinished_ == 0 && all_started_; }

  Capacity capacity() const { return {chunks_.capacity(), messages_.capacity(), buffer_.bytes()}; }
  /// Allocates in advance. The collective must not run.
  void reserve(const Capacity& capacity);

 private:
  /// The next work of this rank on a chunk, once the chunk's messages have ended.
  enum class Stage { gather, add, give_back, finished };

  /// Consecutive elements of the ranges that one rank owns. Chunks of one owner are neighbours and advance in
  /// order, because only their order identifies the messages from one rank to another.
  struct Chunk {
    int owner = 0;
    Stage stage = Stage::gather;
    std::size_t range = 0;          ///< index of the owner's range where the chunk begins
    std::int64_t skipped = 0;       ///< elements of that range that belong to earlier chunks
    std::int64_t count = 0;         ///< elements
    std::size_t buffer_offset = 0;  ///< of its first slot
    std::size_t first_message = 0;  ///< the number of its first message
    int pending = 0;                ///< messages that have not ended
  };
  /// The destination of a sum: accumulator 0 of some ranks of the node, or a slot.
  struct Target {
    int first_peer = 0;
    int peers = 0;
    std::byte* slot = nullptr;
  };

  void add_chunks(int owner);
  /// Carries out the stage of the chunk, if that is possible now.
  bool advance(std::size_t index, SumScratch& scratch);

  // The stages of an owner and of a leader.
  void receive_partials(Chunk& chunk);
  void send_partials(Chunk& chunk, SumScratch& scratch);
  void add_partials(Chunk& chunk, SumScratch& scratch);
  void send_sum(Chunk& chunk);
  void receive_sum(Chunk& chunk);
  void write_sum(const Chunk& chunk);

  void evaluate(const SumProgram& program, const Chunk& chunk, const Target& target, SumScratch& scratch);
  /// Copies a chunk's elements to a slot, in the communication dtype, and back to accumulator 0 of a rank.
  void pack(const Chunk& chunk, int local_rank, int accumulator, std::byte* slot) const;
  void unpack(const Chunk& chunk, const std::byte* slot, int local_rank) const;
  void copy_to_peers(const Chunk& chunk) const;
  /// Calls use(first element, number of elements, elements of the chunk before it) for each range of the
  /// chunk.
  template <class Use>
  void for_each_range(const Chunk& chunk, const Use& use) const;
  void send(Chunk& chunk, int message, const std::byte* data, int to, int tag);
  void receive(Chunk& chunk, int message, std::byte* data, int from, int tag);

  bool gathers() const { return request_.kind != Collective::Kind::all_gather; }
  bool returns() const { return request_.kind != Collective::Kind::reduce_scatter; }
  bool owned(const Chunk& chunk) const { return chunk.owner == context_.rank; }
  std::span<const ElementRange> ranges_of(int owner) const;
  /// Whether the chunk can be sent from and received into an accumulator without a copy.
  bool direct(const Chunk& chunk) const {
    return !cast_ && chunk.skipped + chunk.count <= ranges_of(chunk.owner)[chunk.range].count;
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_bytes_;
  }
  std::size_t sent_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * (cast_ ? bytes_of(request_.sum.comm_dtype) : element_bytes_);
  }
  std::byte* in_accumulator(int local_rank, int accumulator, std::int64_t element) const {
    return request_.flat_buffer->accumulator_of(local_rank, accumulator) + request_.sum.offset_bytes +
           bytes(element);
  }
  std::byte* in_accumulator(const SumPlan::Accumulator& accumulator, std::int64_t element) const {
    return in_accumulator(context_.local_rank_of(accumulator.rank), accumulator.index, element);
  }
  std::int64_t first_element(const Chunk& chunk) const {
    return ranges_of(chunk.owner)[chunk.range].first + chunk.skipped;
  }
  std::byte* slot(const Chunk& chunk, int number) const {
    return buffer_.data() + chunk.buffer_offset +
           static_cast<std::size_t>(number) * Workspace::rounded_up(bytes(chunk.count));
  }
  /// A received partial sum is at the end of its slot, where cast_from() needs it.
  std::byte* end_of_slot(const Chunk& chunk, int partial) const {
    return slot(chunk, partial) + bytes(chunk.count) - sent_bytes(chunk.count);
  }
  /// An owner's slots: received partial sums, its node's partial sums if they are rounded, the sum.
  int sum_slot_number() const { return received_partials() + (cast_ ? own_partials() : 0); }
  std::byte* sum_slot(const Chunk& chunk) const { return slot(chunk, owned(chunk) ? sum_slot_number() : 0); }
  int own_partials() const { return request_.plan ? static_cast<int>(request_.plan->partials.size()) : 0; }
  int received_partials() const { return request_.plan ? request_.plan->received : 0; }

  const CollectiveContext& context_;
  Work work_ = 0;
  Request request_;
  std::size_t element_bytes_ = 0;
  bool cast_ = false;  ///< messages are rounded
  int partial_tag_ = 0;
  int sum_tag_ = 0;
  bool all_started_ = false;
  std::size_t unfinished_ = 0;      ///< chunks
  std::vector<ElementRange> even_;  ///< by rank, for requests without slices
  std::vector<Chunk> chunks_;
  Messages messages_;
  Workspace buffer_;
  std::size_t buffer_used_ = 0;
};

/// The computing thread advances collectives by polling between operations; there is no communication thread.
/// Measured on two emulated nodes of one core each, joined by 1 gbit/s: ten sums of 0.75 MiB (63 ms for the
/// bytes, 66 ms measured alone) started one after another during 79 ms of computing. A step took 95, 92 and
/// 91 ms with polling every 0.2, 1 and 5 ms; 94 to 112 ms with a thread that yields and 92 to 97 ms with one
/// that sleeps 50 us between polls; 93 to 97 ms if only the start of a sum advanced the earlier ones. A
/// thread gains nothing, and would need a lock, a core, and thread support of MPI. With two emulated nodes on
/// one computer all variants take 107 to 114 ms for 95 ms of computing, because the processor carries the
/// messages and nothing can overlap.
class CollectiveQueue {
 public:
  /// Collectives that run at once; later ones wait.
  static constexpr std::uint64_t max_active = BegunCollectives::kept / 2;
  /// Messages use this many tags from first_tag on.
  static constexpr int tags = 2 * static_cast<int>(max_active);

  /// `topology` and `control` must outlive this object.
  CollectiveQueue(MPI_Comm comm, int rank, const Topology& topology, const NodeControl& control,
                  std::size_t chunk_bytes, int first_tag);
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  /// The arguments must have been checked; `map` is null for an all-gather, `slices` are empty for a sum.
  /// Throws UsageError if the flat buffer lacks accumulators for the map.
  Work start(Collective::Kind kind, const TreeSum& sum, const NodeBuffer& flat_buffer, const ShardMap* map,
             const Slices& slices);
  /// Does everything that is possible now. Within one node it makes no MPI call.
  void progress();
  Work started() const { return started_; }
  Work completed() const { return completed_; }

 private:
  const SumPlan& plan_for(const ShardMap& map);
  ActiveCollective& active(Work work) { return active_[work % max_active]; }
  ActiveCollective::Request& waiting(Work work) { return waiting_[work % waiting_.size()]; }
  void activate(Work work);

  CollectiveContext context_;
  int first_tag_;
  std::vector<std::unique_ptr<SumPlan>> plans_;
  std::vector<ActiveCollective::Request> waiting_;  ///< a ring, larger than the buckets of nearly any model
  std::deque<ActiveCollective> active_;             ///< a ring
  ActiveCollective::Capacity capacity_;             ///< of the largest collective so far
  SumScratch scratch_;
  Work started_ = 0;    ///< by this rank
  Work activated_ = 0;  ///< the last one that has begun
  Work added_ = 0;      ///< the last one whose part this rank has done
  Work completed_ = 0;  ///< the last one whose part every rank of the node has done
};

}  // namespace lockstep::comm
