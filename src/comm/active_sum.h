// One tree sum being carried out.
//
// The elements are cut into one slice a rank. On one node, a rank waits until all have started the sum, adds
// its slice along the tree from everyone's planes and writes the result to everyone's plane 0; nobody else
// touches that slice, so there is nothing to lock. With several nodes a slice has its owner on one node and a
// relay on every other: the relay adds its node's terms (see SumPlan) and sends them to the owner, who adds
// everything and sends the sum back for the relay to write to its node's planes. Slices travel in pieces, so
// that adding and sending overlap.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "comm/node.h"
#include "comm/sum_plan.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// What all sums of a communicator share.
struct SumContext {
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

/// Memory for intermediate results, kept from use to use.
class Workspace {
 public:
  /// Grows to `bytes`, 64-byte aligned; what it held is lost if it does.
  void reserve(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

/// What additions need, one at a time.
struct SumScratch {
  Workspace blocks;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

class ActiveSum {
 public:
  struct Request {
    TreeSum sum;
    const NodeArena* arena = nullptr;
    const SumPlan* plan = nullptr;
  };
  /// How much room a sum takes.
  struct Room {
    std::size_t pieces = 0;
    std::size_t messages = 0;
    std::size_t buffer_bytes = 0;
  };

  explicit ActiveSum(const SumContext& context) : context_(&context) {}

  /// Takes up the sum; `tag` and `tag` + 1 are its own until it is finished.
  void begin(std::uint64_t number, const Request& request, int tag);
  /// Does what can be done now; true if anything was.
  bool advance(SumScratch& scratch);
  /// This rank has done its part.
  bool finished() const { return unfinished_ == 0; }

  Room room() const { return {pieces_.capacity(), messages_.capacity(), buffer_.bytes()}; }
  /// Makes room beforehand. Only while no sum is under way.
  void reserve(const Room& room);

 private:
  /// What a piece waits for. An owner's goes through gathering and returning, a relay's through the next
  /// three.
  enum class Stage { gathering, returning, adding, sending, receiving, finished };

  /// A part of a slice that this rank owns or relays. Pieces of one slice lie together and move on in order,
  /// because messages of one direction between two ranks are told apart by their order alone.
  struct Piece {
    int owner = 0;
    Stage stage = Stage::finished;
    std::int64_t count = 0;         ///< elements
    std::size_t offset_bytes = 0;   ///< in every plane
    std::size_t buffer_offset = 0;  ///< where its terms lie in the buffer
    std::size_t first_message = 0;  ///< its messages from here on
    int pending = 0;                ///< of its messages under way
  };

  void add_slice(int owner);
  bool collect_messages();
  bool advance(std::size_t index, SumScratch& scratch);
  void gather(Piece& piece);
  void add_and_return(Piece& piece, SumScratch& scratch);
  void add_and_send(Piece& piece, SumScratch& scratch);
  void write_to_peers(const Piece& piece) const;
  void evaluate(const SumPlan::Sum& sum, const Piece& piece, SumScratch& scratch);

  bool owned(const Piece& piece) const { return piece.owner == context_->rank; }
  std::size_t bytes(const Piece& piece) const {
    return static_cast<std::size_t>(piece.count) * bytes_of(sum_.dtype);
  }
  std::byte* in_plane(int local_rank, int plane, const Piece& piece) const {
    return arena_->plane_of(local_rank, plane) + piece.offset_bytes;
  }
  std::byte* in_buffer(const Piece& piece, int term) const;
  void send(Piece& piece, int message, const std::byte* data, int to, int tag);
  void receive(Piece& piece, int message, std::byte* data, int from, int tag);

  const SumContext* context_;
  std::uint64_t number_ = 0;
  TreeSum sum_;
  const NodeArena* arena_ = nullptr;
  const SumPlan* plan_ = nullptr;
  int term_tag_ = 0;
  int result_tag_ = 0;
  bool all_started_ = false;
  std::size_t unfinished_ = 0;  ///< pieces
  std::vector<Piece> pieces_;
  std::vector<MPI_Request> messages_;
  std::vector<std::size_t> piece_of_message_;
  std::vector<int> arrived_;
  Workspace buffer_;
  std::size_t buffer_used_ = 0;
};

}  // namespace lockstep::comm
