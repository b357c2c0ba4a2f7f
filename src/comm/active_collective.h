// ActiveCollective: one collective that runs: a tree sum, or one of its two halves (reduce-scatter and
// all-gather).
//
// Every element has an owner. On one node, a rank waits until all have started, adds the elements it owns
// along the tree from everyone's accumulators and writes the result to everyone's accumulator 0; nobody else
// touches those elements, so there is nothing to lock. With several nodes an element's owner is on one node,
// and every other node has a leader for it. The leader adds its node's partial sums (see SumPlan) and sends
// them to the owner. The owner adds everything and sends the result back, and the leader writes it to its
// node's accumulators. A reduce-scatter ends when the owner has the result; an all-gather begins there. Ranks
// work in chunks, so that adding and sending overlap.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "comm/node.h"
#include "comm/sum_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// Memory for intermediate results, kept from use to use.
class Workspace {
 public:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t rounded_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// Grows to `bytes`, 64-byte aligned; what it held is lost if it does.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded_up(bytes))));
    if (!memory_) throw FailureError("tree sum: no memory for a buffer of {} bytes", bytes);
    bytes_ = bytes;
  }
  /// Releases the memory without freeing it.
  void leave() { static_cast<void>(memory_.release()); }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

/// The MPI messages of one collective between nodes.
class Messages {
 public:
  Messages(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Forgets all messages, which must have ended. `work` names the next ones in errors.
  void begin(std::uint64_t work);
  void reserve(std::size_t messages);
  std::size_t capacity() const { return requests_.capacity(); }
  bool under_way() const { return under_way_ > 0; }

  /// Adds the messages of a chunk; returns the number of the first.
  std::size_t add(std::size_t messages, std::size_t chunk);
  void send(std::size_t place, const std::byte* data, std::size_t bytes, int to, int tag);
  void receive(std::size_t place, std::byte* data, std::size_t bytes, int from, int tag);
  /// The chunks of the messages that have ended since the last call, one entry a message. Throws FailureError
  /// if another rank's message has another size than expected.
  std::span<const std::size_t> collect();

 private:
  struct About {
    std::size_t chunk = 0;
    std::size_t received_bytes = 0;  ///< 0 for a message that is sent
  };
  void check(std::size_t place, const MPI_Status& status, bool failed) const;

  MPI_Comm comm_;
  int rank_;
  std::uint64_t work_ = 0;
  std::size_t under_way_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<About> about_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::size_t> chunks_;
};

/// What all collectives of a communicator share.
struct CollectiveContext {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int node = 0;
  const NodeControl* control = nullptr;
  std::vector<int> node_of_rank;
  std::vector<int> local_rank_of_rank;
  std::vector<std::vector<int>> ranks_of_node;
  std::size_t chunk_bytes = 0;

  int nodes() const { return static_cast<int>(ranks_of_node.size()); }
  /// The rank of the node that sends to and receives from `owner`, a rank of another node.
  int leader(int on_node, int owner) const;
};

/// Scratch memory of one addition.
struct SumScratch {
  Workspace blocks;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

class ActiveCollective {
 public:
  struct Request {
    Collective::Kind kind = Collective::Kind::sum;
    TreeSum sum;
    const NodeBuffer* flat_buffer = nullptr;
    const SumPlan* plan = nullptr;  ///< none for an all-gather
    Slices slices;                  ///< of no ranks: even ones
    Collective collective() const;
  };
  /// The memory that a collective uses.
  struct Room {
    std::size_t chunks = 0;
    std::size_t messages = 0;
    std::size_t buffer_bytes = 0;
  };

  explicit ActiveCollective(const CollectiveContext& context);
  /// After a failure messages may still arrive: the process then keeps their memory until it ends.
  ~ActiveCollective() {
    if (messages_.under_way()) buffer_.leave();
  }
  ActiveCollective(const ActiveCollective&) = delete;
  ActiveCollective& operator=(const ActiveCollective&) = delete;

  /// Begins the collective, which uses the tags `tag` and `tag` + 1 until it has finished.
  void begin(std::uint64_t work, Request request, int tag);
  /// Does everything that is possible now; true if that was anything. Throws FailureError if ranks have
  /// started different collectives.
  bool advance(SumScratch& scratch);
  /// This rank has done its part.
  bool finished() const { return unfinished_ == 0 && all_started_; }

  Room room() const { return {chunks_.capacity(), messages_.capacity(), buffer_.bytes()}; }
  /// Allocates in advance. Only while the collective does not run.
  void reserve(const Room& room);

 private:
  /// What is done next with a chunk, once its messages have ended:
  ///   gather     a leader adds its node's partial sums and sends them to the owner
  ///   add        the owner adds everything and sends the result; a leader begins to receive it
  ///   distribute a leader writes the result to its node's accumulators
  enum class Stage { gather, add, distribute, finished };

  /// Consecutive elements of the ranges that one rank owns. Chunks of one owner are neighbours and advance in
  /// order, because only their order identifies the messages from one rank to another.
  struct Chunk {
    int owner = 0;
    Stage stage = Stage::gather;
    std::size_t range = 0;          ///< of the owner's, where the chunk begins
    std::int64_t skipped = 0;       ///< elements of that range, which belong to earlier chunks
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
  bool advance(std::size_t index, SumScratch& scratch);
  void receive_partials(Chunk& chunk);
  void add_all(Chunk& chunk, SumScratch& scratch);
  void send_result(Chunk& chunk);
  void add_and_send_partials(Chunk& chunk, SumScratch& scratch);
  void receive_result(Chunk& chunk);
  void distribute_result(const Chunk& chunk);
  void evaluate(const SumProgram& sum, const Chunk& chunk, const Target& target, SumScratch& scratch);

  /// Copies a chunk's elements to a slot, in the communication dtype, and back to accumulator 0 of a rank.
  void pack(const Chunk& chunk, int local_rank, int accumulator, std::byte* slot) const;
  void unpack(const Chunk& chunk, const std::byte* slot, int local_rank) const;
  void copy_to_peers(const Chunk& chunk) const;
  /// Calls use(first element, elements, how many of the chunk come before) for each range of the chunk.
  template <class Use>
  void for_each_range(const Chunk& chunk, const Use& use) const;

  const SumPlan::Accumulator& accumulator(int source) const {
    return request_.plan->accumulators[static_cast<std::size_t>(source)];
  }
  int local(int rank) const { return context_->local_rank_of_rank[static_cast<std::size_t>(rank)]; }
  bool owned(const Chunk& chunk) const { return chunk.owner == context_->rank; }
  bool is(Collective::Kind kind) const { return request_.kind == kind; }
  std::span<const ElementRange> ranges_of(int owner) const;
  /// The chunk can be sent from and received into an accumulator without a copy.
  bool direct(const Chunk& chunk) const;
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
  std::int64_t first_element(const Chunk& chunk) const {
    return ranges_of(chunk.owner)[chunk.range].first + chunk.skipped;
  }
  std::byte* slot(const Chunk& chunk, int number) const;
  /// A received partial sum is at the end of its slot, where cast_from() needs it.
  std::byte* partial_place(const Chunk& chunk, int partial) const {
    return slot(chunk, partial) + bytes(chunk.count) - sent_bytes(chunk.count);
  }
  /// An owner's slots: received partial sums, its node's partial sums if they are rounded, the result.
  int result_slot_number() const { return received_partials() + (cast_ ? own_partials() : 0); }
  std::byte* result_slot(const Chunk& chunk) const {
    return slot(chunk, owned(chunk) ? result_slot_number() : 0);
  }
  int own_partials() const { return request_.plan ? static_cast<int>(request_.plan->partials.size()) : 0; }
  int received_partials() const { return request_.plan ? request_.plan->received : 0; }
  void send(Chunk& chunk, int message, const std::byte* data, int to, int tag);
  void receive(Chunk& chunk, int message, std::byte* data, int from, int tag);

  const CollectiveContext* context_;
  std::uint64_t work_ = 0;
  Request request_;
  std::size_t element_bytes_ = 0;
  bool cast_ = false;  ///< messages are rounded
  int partial_tag_ = 0;
  int result_tag_ = 0;
  bool all_started_ = false;
  std::size_t unfinished_ = 0;      ///< chunks
  std::vector<ElementRange> even_;  ///< by rank, where the request has no slices
  std::vector<Chunk> chunks_;
  Messages messages_;
  Workspace buffer_;
  std::size_t buffer_used_ = 0;
};

}  // namespace lockstep::comm
