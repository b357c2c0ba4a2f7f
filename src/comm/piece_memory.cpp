// Where the elements of a piece lie, and moving them about.
#include <cstring>

#include "comm/active_exchange.h"

namespace lockstep::comm {

template <class Use>
void ActiveExchange::for_each_range(const Piece& piece, const Use& use) const {
  const auto ranges = ranges_of(piece.owner);
  std::int64_t skipped = piece.skipped;
  std::size_t range = piece.range;
  for (std::int64_t before = 0; before < piece.count; ++range) {
    const std::int64_t count = std::min(ranges[range].count - skipped, piece.count - before);
    use(ranges[range].first + skipped, count, before);
    before += count;
    skipped = 0;
  }
}

void ActiveExchange::evaluate(const SumPlan::Sum& sum, const Piece& piece, const Target& target,
                              SumScratch& scratch) {
  for_each_range(piece, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    scratch.sources.clear();
    for (const SumPlan::Source& source : sum.sources) {
      scratch.sources.push_back(source.local_rank >= 0 ? in_plane(source.local_rank, source.index, first)
                                                       : slot(piece, source.index) + bytes(before));
    }
    scratch.destinations.clear();
    if (target.slot) scratch.destinations.push_back(target.slot + bytes(before));
    for (int peer = 0; peer < target.peers; ++peer)
      scratch.destinations.push_back(in_plane(target.first_peer + peer, 0, first));
    sum.program.evaluate(request_.sum.dtype, count, scratch.sources, scratch.destinations,
                         scratch.blocks.data());
  });
}

void ActiveExchange::pack(const Piece& piece, int local_rank, int plane, std::byte* slot) const {
  for_each_range(piece, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    const std::byte* values = in_plane(local_rank, plane, first);
    if (narrow_) {
      narrow(values, slot + wire_bytes(before), count, request_.sum.wire);
    } else {
      std::memcpy(slot + bytes(before), values, bytes(count));
    }
  });
}

void ActiveExchange::unpack(const Piece& piece, const std::byte* slot, int local_rank) const {
  for_each_range(piece, [&](std::int64_t first, std::int64_t count, std::int64_t before) {
    std::byte* values = in_plane(local_rank, 0, first);
    if (narrow_) {
      widen(slot + wire_bytes(before), values, count, request_.sum.wire);
    } else {
      std::memcpy(values, slot + bytes(before), bytes(count));
    }
  });
}

void ActiveExchange::copy_to_peers(const Piece& piece) const {
  const int mine = context_->board->local_rank();
  for_each_range(piece, [&](std::int64_t first, std::int64_t count, std::int64_t) {
    for (int peer = 0; peer < context_->board->local_ranks(); ++peer) {
      if (peer != mine) std::memcpy(in_plane(peer, 0, first), in_plane(mine, 0, first), bytes(count));
    }
  });
}

std::byte* ActiveExchange::slot(const Piece& piece, int number) const {
  return buffer_.data() + piece.buffer_offset +
         static_cast<std::size_t>(number) * Workspace::rounded_up(bytes(piece.count));
}

void ActiveExchange::send(Piece& piece, int message, const std::byte* data, int to, int tag) {
  messages_.send(piece.first_message + static_cast<std::size_t>(message), data, wire_bytes(piece.count), to,
                 tag);
  ++piece.pending;
}

void ActiveExchange::receive(Piece& piece, int message, std::byte* data, int from, int tag) {
  messages_.receive(piece.first_message + static_cast<std::size_t>(message), data, wire_bytes(piece.count),
                    from, tag);
  ++piece.pending;
}

}  // namespace lockstep::comm
