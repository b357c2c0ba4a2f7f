// One exchange being carried out: a tree sum, or one of its two halves (reduce-scatter and all-gather).
//
// Every element has an owner. On one node, a rank waits until all have started, adds the elements it owns
// along the tree from everyone's planes and writes the result to everyone's plane 0; nobody else touches
// those elements, so there is nothing to lock. With several nodes an element's owner is on one node, and
// every other has a relay for it: the relay adds its node's terms (see SumPlan) and sends them to the owner,
// who adds everything and sends the result back for the relay to write to its node's planes. A reduce-scatter
// ends when the owner has the result; an all-gather begins there. What a rank owns or relays is handled in
// pieces, so that adding and sending overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/messages.h"
#include "comm/node.h"
#include "comm/sum_plan.h"
#include "comm/wire.h"
#include "comm/workspace.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// What all exchanges of a communicator share.
struct ExchangeContext {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int node = 0;
  const NodeBoard* board = nullptr;
  std::vector<int> node_of_rank;
  std::vector<int> local_rank_of_rank;
  std::vector<std::vector<int>> ranks_of_node;
  std::size_t piece_bytes = 0;

  int nodes() const { return static_cast<int>(ranks_of_node.size()); }
  /// The rank of `node` that stands between it and `owner`, a rank of another node.
  int relay(int on_node, int owner) const;
};

/// What additions need, one at a time.
struct SumScratch {
  Workspace blocks;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

class ActiveExchange {
 public:
  struct Request {
    Exchange::Kind kind = Exchange::Kind::sum;
    TreeSum sum;
    const NodeArena* arena = nullptr;
    const SumPlan* plan = nullptr;  ///< none for an all-gather
    Slices slices;                  ///< of no ranks: even ones
    Exchange exchange() const;
  };
  /// How much room an exchange takes.
  struct Room {
    std::size_t pieces = 0;
    std::size_t messages = 0;
    std::size_t buffer_bytes = 0;
  };

  explicit ActiveExchange(const ExchangeContext& context);
  /// After a failure messages may still arrive: their memory is then left to the end of the process.
  ~ActiveExchange() {
    if (messages_.under_way()) buffer_.leave();
  }
  ActiveExchange(const ActiveExchange&) = delete;
  ActiveExchange& operator=(const ActiveExchange&) = delete;

  /// Takes up the exchange; `tag` and `tag` + 1 are its own until it is finished.
  void begin(std::uint64_t ticket, Request request, int tag);
  /// Does what can be done now; true if anything was. Throws FailureError if ranks have started different
  /// exchanges.
  bool advance(SumScratch& scratch);
  /// This rank has done its part.
  bool finished() const { return unfinished_ == 0 && all_started_; }

  Room room() const { return {pieces_.capacity(), messages_.capacity(), buffer_.bytes()}; }
  /// Makes room beforehand. Only while nothing is under way.
  void reserve(const Room& room);

 private:
  /// What a piece waits for. An owner's goes through gathering and returning, a relay's through the next
  /// three.
  enum class Stage { gathering, returning, adding, sending, receiving, finished };

  /// A part of what one rank owns, of consecutive elements of its ranges. Pieces of one owner lie together
  /// and move on in order, because messages of one direction between two ranks are told apart by their order
  /// alone.
  struct Piece {
    int owner = 0;
    Stage stage = Stage::finished;
    std::size_t range = 0;          ///< of the owner's, where the piece begins
    std::int64_t skipped = 0;       ///< elements of that range, which belong to earlier pieces
    std::int64_t count = 0;         ///< elements
    std::size_t buffer_offset = 0;  ///< where its slots begin
    std::size_t first_message = 0;  ///< its messages from here on
    int pending = 0;                ///< of its messages under way
  };
  /// Where a sum goes: the same place of plane 0 of some ranks of the node, or a slot.
  struct Target {
    int first_peer = 0;
    int peers = 0;
    std::byte* slot = nullptr;
  };

  void add_pieces(int owner);
  void collect_messages();
  bool advance(std::size_t index, SumScratch& scratch);
  void receive_terms(Piece& piece);
  void add_all(Piece& piece, SumScratch& scratch);
  void send_result(Piece& piece);
  void add_and_send_terms(Piece& piece, SumScratch& scratch);
  void receive_result(Piece& piece);
  void distribute_result(const Piece& piece);
  void evaluate(const SumPlan::Sum& sum, const Piece& piece, const Target& target, SumScratch& scratch);

  /// Elements of a piece to a slot, in the wire's type, and back to plane 0 of a rank of the node.
  void pack(const Piece& piece, int local_rank, int plane, std::byte* slot) const;
  void unpack(const Piece& piece, const std::byte* slot, int local_rank) const;
  void copy_to_peers(const Piece& piece) const;
  /// Calls use(first element, elements, how many of the piece come before) for each range of the piece.
  template <class Use>
  void for_each_range(const Piece& piece, const Use& use) const;

  bool owned(const Piece& piece) const { return piece.owner == context_->rank; }
  bool is(Exchange::Kind kind) const { return request_.kind == kind; }
  std::span<const ElementRange> ranges_of(int owner) const;
  /// The piece can travel straight from and to a plane.
  bool direct(const Piece& piece) const;
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_bytes_;
  }
  std::size_t wire_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * (narrow_ ? bytes_of(request_.sum.wire) : element_bytes_);
  }
  std::byte* in_plane(int local_rank, int plane, std::int64_t element) const {
    return request_.arena->plane_of(local_rank, plane) + request_.sum.offset_bytes + bytes(element);
  }
  std::int64_t first_element(const Piece& piece) const {
    return ranges_of(piece.owner)[piece.range].first + piece.skipped;
  }
  std::byte* slot(const Piece& piece, int number) const;
  /// Where a received term lies: widening needs the wire's bytes at the end of the slot.
  std::byte* term_place(const Piece& piece, int term) const {
    return slot(piece, term) + bytes(piece.count) - wire_bytes(piece.count);
  }
  /// An owner's slots: the terms it receives, its node's terms if they are rounded, the result.
  int result_slot_number() const { return received_terms() + (narrow_ ? own_terms() : 0); }
  std::byte* result_slot(const Piece& piece) const {
    return slot(piece, owned(piece) ? result_slot_number() : 0);
  }
  int own_terms() const { return request_.plan ? static_cast<int>(request_.plan->terms.size()) : 0; }
  int received_terms() const { return request_.plan ? request_.plan->received : 0; }
  void send(Piece& piece, int message, const std::byte* data, int to, int tag);
  void receive(Piece& piece, int message, std::byte* data, int from, int tag);

  const ExchangeContext* context_;
  std::uint64_t ticket_ = 0;
  Request request_;
  std::size_t element_bytes_ = 0;
  bool narrow_ = false;  ///< messages are rounded
  int term_tag_ = 0;
  int result_tag_ = 0;
  bool all_started_ = false;
  std::size_t unfinished_ = 0;      ///< pieces
  std::vector<ElementRange> even_;  ///< by rank, where the request has no slices
  std::vector<Piece> pieces_;
  Messages messages_;
  Workspace buffer_;
  std::size_t buffer_used_ = 0;
};

}  // namespace lockstep::comm
