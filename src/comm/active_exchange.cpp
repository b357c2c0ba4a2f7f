// The pieces of an exchange, and what moves them on.
#include "comm/active_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace lockstep::comm {
namespace {

constexpr std::int64_t piece_unit = 16;  // elements; pieces of a long range start at whole cache lines

}  // namespace

int ExchangeContext::relay(int on_node, int owner) const {
  const std::vector<int>& ranks = ranks_of_node[static_cast<std::size_t>(on_node)];
  return ranks[static_cast<std::size_t>(local_rank_of_rank[static_cast<std::size_t>(owner)]) % ranks.size()];
}

Exchange ActiveExchange::Request::exchange() const {
  Exchange result;
  result.kind = kind;
  result.dtype = sum.dtype;
  result.wire = sum.wire;
  result.shards = plan ? plan->shards : 0;
  result.arena = arena->number();
  result.offset_bytes = sum.offset_bytes;
  result.count = sum.count;
  result.slices = slices.digest();
  return result;
}

ActiveExchange::ActiveExchange(const ExchangeContext& context)
    : context_(&context),
      even_(static_cast<std::size_t>(context.size)),
      messages_(context.comm, context.rank) {}

void ActiveExchange::begin(std::uint64_t ticket, Request request, int tag) {
  ticket_ = ticket;
  request_ = std::move(request);
  element_bytes_ = bytes_of(request_.sum.dtype);
  narrow_ = context_->nodes() > 1 && !is(Exchange::Kind::all_gather) &&
            narrows(request_.sum.wire, request_.sum.dtype);
  term_tag_ = tag;
  result_tag_ = tag + 1;
  all_started_ = false;
  pieces_.clear();
  messages_.begin(ticket);
  buffer_used_ = 0;
  if (request_.slices.ranks() == 0) {
    for (int rank = 0; rank < context_->size; ++rank)
      even_[static_cast<std::size_t>(rank)] = even_slice(request_.sum.count, context_->size, rank);
  }
  add_pieces(context_->rank);
  for (int owner = 0; owner < context_->size; ++owner) {
    const bool elsewhere = context_->node_of_rank[static_cast<std::size_t>(owner)] != context_->node;
    if (elsewhere && context_->relay(context_->node, owner) == context_->rank) add_pieces(owner);
  }
  unfinished_ = pieces_.size();
  reserve({pieces_.size(), messages_.capacity(), buffer_used_});
  for (Piece& piece : pieces_) {
    if (owned(piece)) receive_terms(piece);
  }
}

void ActiveExchange::reserve(const Room& room) {
  pieces_.reserve(room.pieces);
  messages_.reserve(room.messages);
  buffer_.reserve(room.buffer_bytes);
}

std::span<const ElementRange> ActiveExchange::ranges_of(int owner) const {
  if (request_.slices.ranks() > 0) return request_.slices.of(owner);
  return {&even_[static_cast<std::size_t>(owner)], 1};
}

bool ActiveExchange::direct(const Piece& piece) const {
  return !narrow_ && piece.skipped + piece.count <= ranges_of(piece.owner)[piece.range].count;
}

void ActiveExchange::add_pieces(int owner) {
  const auto ranges = ranges_of(owner);
  std::int64_t left = std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                                      [](std::int64_t sum, ElementRange range) { return sum + range.count; });
  const auto fitting = static_cast<std::int64_t>(context_->piece_bytes / wire_bytes(1));
  const bool alone = context_->nodes() == 1;
  // Without messages there is nothing to overlap with.
  const std::int64_t step = alone ? left : std::max(fitting, piece_unit) / piece_unit * piece_unit;

  const bool mine = owner == context_->rank;
  const int messages = mine ? std::max(received_terms(), context_->nodes() - 1) : std::max(own_terms(), 1);
  Stage stage = Stage::gathering;
  if (!mine) stage = is(Exchange::Kind::all_gather) ? Stage::sending : Stage::adding;
  Piece piece;
  while (left > 0) {
    piece.owner = owner;
    piece.stage = stage;
    piece.count = std::min(step, left);
    piece.buffer_offset = buffer_used_;
    const int packed = !alone && !direct(piece) ? 1 : 0;
    const int slots = mine ? result_slot_number() + packed : std::max(own_terms(), packed);
    buffer_used_ += static_cast<std::size_t>(slots) * Workspace::rounded_up(bytes(piece.count));
    piece.first_message = messages_.add(static_cast<std::size_t>(messages), pieces_.size());
    pieces_.push_back(piece);

    left -= piece.count;
    piece.skipped += piece.count;
    while (piece.range < ranges.size() && piece.skipped >= ranges[piece.range].count)
      piece.skipped -= ranges[piece.range++].count;
  }
}

bool ActiveExchange::advance(SumScratch& scratch) {
  if (!all_started_) {
    if (!context_->board->all_reached(&NodeFlags::started, ticket_)) return false;
    context_->board->check_same_exchange(ticket_);
    all_started_ = true;
  }
  collect_messages();
  bool moved = false;
  for (std::size_t index = 0; index < pieces_.size(); ++index) {
    while (advance(index, scratch)) moved = true;
  }
  return moved;
}

void ActiveExchange::collect_messages() {
  for (const std::size_t piece : messages_.collect()) --pieces_[piece].pending;
}

bool ActiveExchange::advance(std::size_t index, SumScratch& scratch) {
  Piece& piece = pieces_[index];
  if (piece.stage == Stage::finished || piece.pending > 0) return false;
  if (index > 0 && pieces_[index - 1].owner == piece.owner && pieces_[index - 1].stage <= piece.stage)
    return false;
  const auto finish = [&] {
    piece.stage = Stage::finished;
    --unfinished_;
  };
  switch (piece.stage) {
    case Stage::gathering:
      if (is(Exchange::Kind::all_gather)) {
        copy_to_peers(piece);
      } else {
        add_all(piece, scratch);
      }
      if (!is(Exchange::Kind::reduce_scatter)) send_result(piece);
      piece.stage = Stage::returning;
      break;
    case Stage::returning:
      finish();
      break;
    case Stage::adding:
      add_and_send_terms(piece, scratch);
      piece.stage = Stage::sending;
      break;
    case Stage::sending:
      if (is(Exchange::Kind::reduce_scatter)) {
        finish();
        break;
      }
      // Terms may have been sent straight from the planes: only now may the result overwrite them.
      receive_result(piece);
      piece.stage = Stage::receiving;
      break;
    case Stage::receiving:
      distribute_result(piece);
      finish();
      break;
    case Stage::finished:
      return false;
  }
  return true;
}

void ActiveExchange::receive_terms(Piece& piece) {
  if (!request_.plan) return;
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node == context_->node) continue;
    const int from = context_->relay(node, context_->rank);
    for (int term = 0; term < request_.plan->terms_of_node[static_cast<std::size_t>(node)]; ++term, ++message)
      receive(piece, message, term_place(piece, message), from, term_tag_);
  }
}

void ActiveExchange::add_all(Piece& piece, SumScratch& scratch) {
  const int mine = context_->board->local_rank();
  const bool everywhere = is(Exchange::Kind::sum);
  const Target target{everywhere ? 0 : mine, everywhere ? context_->board->local_ranks() : 1};
  if (!narrow_) {
    evaluate(request_.plan->whole, piece, target, scratch);
    return;
  }
  // This node's terms are rounded like all others, so that the bits do not depend on who owns an element.
  for (int term = 0; term < received_terms(); ++term)
    widen(term_place(piece, term), slot(piece, term), piece.count, request_.sum.wire);
  for (int term = 0; term < own_terms(); ++term) {
    std::byte* place = slot(piece, received_terms() + term);
    evaluate(request_.plan->terms[static_cast<std::size_t>(term)], piece, {.slot = place}, scratch);
    round_to(request_.sum.wire, place, piece.count);
  }
  evaluate(request_.plan->whole_of_terms, piece, {.slot = result_slot(piece)}, scratch);
  narrow(result_slot(piece), result_slot(piece), piece.count, request_.sum.wire);
  for (int peer = 0; peer < target.peers; ++peer) unpack(piece, result_slot(piece), target.first_peer + peer);
}

void ActiveExchange::send_result(Piece& piece) {
  if (context_->nodes() == 1) return;
  const int mine = context_->board->local_rank();
  const std::byte* data = result_slot(piece);
  if (direct(piece)) {
    data = in_plane(mine, 0, first_element(piece));
  } else if (!narrow_) {  // a narrow result lies there already
    pack(piece, mine, 0, result_slot(piece));
  }
  int message = 0;
  for (int node = 0; node < context_->nodes(); ++node) {
    if (node != context_->node)
      send(piece, message++, data, context_->relay(node, context_->rank), result_tag_);
  }
}

void ActiveExchange::add_and_send_terms(Piece& piece, SumScratch& scratch) {
  int message = 0;
  for (const SumPlan::Sum& term : request_.plan->terms) {
    std::byte* place = slot(piece, message);
    const std::byte* data = place;
    if (const int only = term.program.only_source(); only >= 0) {
      const SumPlan::Source& source = term.sources[static_cast<std::size_t>(only)];
      if (direct(piece)) {
        data = in_plane(source.local_rank, source.index, first_element(piece));
      } else {
        pack(piece, source.local_rank, source.index, place);
      }
    } else {
      evaluate(term, piece, {.slot = place}, scratch);
      if (narrow_) narrow(place, place, piece.count, request_.sum.wire);
    }
    send(piece, message++, data, piece.owner, term_tag_);
  }
}

void ActiveExchange::receive_result(Piece& piece) {
  std::byte* place =
      direct(piece) ? in_plane(context_->board->local_rank(), 0, first_element(piece)) : result_slot(piece);
  receive(piece, 0, place, piece.owner, result_tag_);
}

void ActiveExchange::distribute_result(const Piece& piece) {
  if (direct(piece)) {
    copy_to_peers(piece);
    return;
  }
  for (int peer = 0; peer < context_->board->local_ranks(); ++peer) unpack(piece, result_slot(piece), peer);
}

}  // namespace lockstep::comm
