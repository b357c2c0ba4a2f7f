// The pieces of a sum, and what moves them on.
#include "comm/active_sum.h"

#include <algorithm>
#include <cstring>

#include "comm/mpi_check.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::int64_t slice_unit = 16;  // elements; slices start at whole cache lines

std::size_t rounded_up(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

int SumContext::relay(int on_node, int owner) const {
  const std::vector<int>& ranks = ranks_of_node[static_cast<std::size_t>(on_node)];
  return ranks[static_cast<std::size_t>(local_rank_of_rank[static_cast<std::size_t>(owner)]) % ranks.size()];
}

void Workspace::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded_up(bytes))));
  if (!memory_) throw FailureError("tree sum: no memory for a buffer of {} bytes", bytes);
  bytes_ = bytes;
}

void ActiveSum::begin(std::uint64_t number, const Request& request, int tag) {
  number_ = number;
  sum_ = request.sum;
  arena_ = request.arena;
  plan_ = request.plan;
  term_tag_ = tag;
  result_tag_ = tag + 1;
  all_started_ = false;
  pieces_.clear();
  messages_.clear();
  piece_of_message_.clear();
  buffer_used_ = 0;
  add_slice(context_->rank);
  for (int owner = 0; owner < context_->size; ++owner) {
    const bool elsewhere = context_->node_of_rank[static_cast<std::size_t>(owner)] != context_->node;
    if (elsewhere && context_->relay(context_->node, owner) == context_->rank) add_slice(owner);
  }
  unfinished_ = pieces_.size();
  reserve({pieces_.size(), messages_.size(), buffer_used_});
  for (Piece& piece : pieces_) {
    if (owned(piece)) gather(piece);
  }
}

void ActiveSum::reserve(const Room& room) {
  pieces_.reserve(room.pieces);
  messages_.reserve(room.messages);
  piece_of_message_.reserve(room.messages);
  arrived_.resize(std::max(arrived_.size(), room.messages));
  buffer_.reserve(room.buffer_bytes);
}

void ActiveSum::add_slice(int owner) {
  const std::int64_t units = (sum_.count + slice_unit - 1) / slice_unit;
  const std::int64_t first = units * owner / context_->size * slice_unit;
  const std::int64_t end = std::min(units * (owner + 1) / context_->size * slice_unit, sum_.count);
  const std::size_t element_bytes = bytes_of(sum_.dtype);
  const auto fitting = static_cast<std::int64_t>(context_->piece_bytes / element_bytes);
  // Without messages there is nothing to overlap with.
  const std::int64_t step =
      context_->nodes() == 1 ? end - first : std::max(fitting, slice_unit) / slice_unit * slice_unit;

  const bool mine = owner == context_->rank;
  const auto own_terms = static_cast<int>(plan_->terms.size());
  const int messages = mine ? std::max(plan_->received, context_->nodes() - 1) : std::max(own_terms, 1);
  const int buffered_terms = mine ? plan_->received : own_terms;
  for (std::int64_t at = first; at < end; at += step) {
    Piece piece;
    piece.owner = owner;
    piece.stage = mine ? Stage::gathering : Stage::adding;
    piece.count = std::min(step, end - at);
    piece.offset_bytes = sum_.offset_bytes + static_cast<std::size_t>(at) * element_bytes;
    piece.buffer_offset = buffer_used_;
    piece.first_message = messages_.size();
    buffer_used_ += static_cast<std::size_t>(buffered_terms) * rounded_up(bytes(piece));
    messages_.resize(messages_.size() + static_cast<std::size_t>(messages), MPI_REQUEST_NULL);
    piece_of_message_.resize(messages_.size(), pieces_.size());
    pieces_.push_back(piece);
  }
}

bool ActiveSum::advance(SumScratch& scratch) {
  bool moved = collect_messages();
  if (!all_started_) all_started_ = context_->board->all_reached(&NodeFlags::started, number_);
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    while (advance(index, scratch)) moved = true;
  }
  return moved;
}

bool ActiveSum::collect_messages() {
  if (messages_.empty() || finished()) return false;
  int count = 0;
  check_mpi(MPI_Testsome(static_cast<int>(messages_.size()), messages_.data(), &count, arrived_.data(),
                         MPI_STATUSES_IGNORE),
            "MPI_Testsome of a tree sum", context_->rank);
  if (count == MPI_UNDEFINED) return false;
  for (int i = 0; i < count; ++i) {
    const auto message = static_cast<std::size_t>(arrived_[static_cast<std::size_t>(i)]);
    --pieces_[piece_of_message_[message]].pending;
  }
  return count > 0;
}

bool ActiveSum::advance(std::size_t index, SumScratch& scratch) {
  Piece& piece = pieces_[index];
  if (piece.stage == Stage::finished || piece.pending > 0 || !all_started_) return false;
  if (index > 0 && pieces_[index - 1].owner == piece.owner && pieces_[index - 1].stage <= piece.stage)
    return false;
  switch (piece.stage) {
    case Stage::gathering:
      add_and_return(piece, scratch);
      piece.stage = Stage::returning;
      return true;
    case Stage::adding:
      add_and_send(piece, scratch);
      piece.stage = Stage::sending;
      return true;
    case Stage::sending:
      // Terms may have been sent straight from the planes: only now may the result overwrite them.
      receive(piece, 0, in_plane(context_->board->local_rank(), 0, piece), piece.owner, result_tag_);
      piece.stage = Stage::receiving;
      return true;
    case Stage::receiving:
      write_to_peers(piece);
      [[fallthrough]];
    case Stage::returning:
      piece.stage = Stage::finished;
      --unfinished_;
      return true;
    case Stage::finished:
      break;
  }
  return false;
}

void ActiveSum::gather(Piece& piece) {
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node == context_->node) continue;
    const int from = context_->relay(node, context_->rank);
    for (int term = 0; term < plan_->terms_of_node[static_cast<std::size_t>(node)]; ++term, ++message) {
      receive(piece, message, in_buffer(piece, message), from, term_tag_);
    }
  }
}

void ActiveSum::add_and_return(Piece& piece, SumScratch& scratch) {
  scratch.destinations.clear();
  for (int peer = 0; peer < context_->board->local_ranks(); ++peer)
    scratch.destinations.push_back(in_plane(peer, 0, piece));
  evaluate(plan_->whole, piece, scratch);
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node == context_->node) continue;
    const std::byte* result = in_plane(context_->board->local_rank(), 0, piece);
    send(piece, message++, result, context_->relay(node, context_->rank), result_tag_);
  }
}

void ActiveSum::add_and_send(Piece& piece, SumScratch& scratch) {
  int message = 0;
  for (const SumPlan::Sum& term : plan_->terms) {
    const std::byte* data = nullptr;
    if (const int only = term.program.only_source(); only >= 0) {
      const SumPlan::Source& source = term.sources[static_cast<std::size_t>(only)];
      data = in_plane(source.local_rank, source.index, piece);
    } else {
      scratch.destinations.assign(1, in_buffer(piece, message));
      evaluate(term, piece, scratch);
      data = scratch.destinations.front();
    }
    send(piece, message++, data, piece.owner, term_tag_);
  }
}

void ActiveSum::write_to_peers(const Piece& piece) const {
  const int mine = context_->board->local_rank();
  for (int peer = 0; peer < context_->board->local_ranks(); ++peer) {
    if (peer != mine) std::memcpy(in_plane(peer, 0, piece), in_plane(mine, 0, piece), bytes(piece));
  }
}

void ActiveSum::evaluate(const SumPlan::Sum& sum, const Piece& piece, SumScratch& scratch) {
  scratch.sources.clear();
  for (const SumPlan::Source& source : sum.sources) {
    scratch.sources.push_back(source.local_rank >= 0 ? in_plane(source.local_rank, source.index, piece)
                                                     : in_buffer(piece, source.index));
  }
  sum.program.evaluate(sum_.dtype, piece.count, scratch.sources, scratch.destinations, scratch.blocks.data());
}

std::byte* ActiveSum::in_buffer(const Piece& piece, int term) const {
  return buffer_.data() + piece.buffer_offset + static_cast<std::size_t>(term) * rounded_up(bytes(piece));
}

void ActiveSum::send(Piece& piece, int message, const std::byte* data, int to, int tag) {
  MPI_Request& request = messages_[piece.first_message + static_cast<std::size_t>(message)];
  check_mpi(MPI_Isend(data, static_cast<int>(bytes(piece)), MPI_BYTE, to, tag, context_->comm, &request),
            "MPI_Isend of a tree sum", context_->rank);
  ++piece.pending;
}

void ActiveSum::receive(Piece& piece, int message, std::byte* data, int from, int tag) {
  MPI_Request& request = messages_[piece.first_message + static_cast<std::size_t>(message)];
  check_mpi(MPI_Irecv(data, static_cast<int>(bytes(piece)), MPI_BYTE, from, tag, context_->comm, &request),
            "MPI_Irecv of a tree sum", context_->rank);
  ++piece.pending;
}

}  // namespace lockstep::comm
