// The calls, in order.
#include "comm/nccl/device_exchanges.h"

#include <algorithm>

#include "comm/wire.h"

namespace lockstep::comm {
namespace {

constexpr std::int64_t unit = 32;  // elements: 64 bytes of the narrowest type

std::int64_t padded(std::int64_t elements) { return (elements + unit - 1) / unit * unit; }

/// Elements of a slot for these ranges: each begins at a multiple of `unit`.
std::int64_t slot_elements(std::span<const ElementRange> ranges) {
  std::int64_t elements = 0;
  for (const ElementRange range : ranges) elements += padded(range.count);
  return elements;
}

std::size_t bytes_for(std::int64_t elements, std::size_t element_bytes) {
  return static_cast<std::size_t>(elements) * element_bytes;
}

/// A group that closes and opens again before it holds too many calls.
class Group {
 public:
  explicit Group(DeviceCalls& calls) : calls_(calls) { calls_.begin_group(); }
  void end() { calls_.end_group(); }
  /// Before `calls` more: every rank must say the same number.
  void make_room(int calls) {
    if (held_ + calls > DeviceCalls::most_in_group) {
      calls_.end_group();
      calls_.begin_group();
      held_ = 0;
    }
    held_ += calls;
  }

 private:
  DeviceCalls& calls_;
  int held_ = 0;
};

}  // namespace

DeviceExchanges::DeviceExchanges(DeviceCalls& calls, int rank, int ranks, bool reproducible)
    : calls_(calls),
      rank_(rank),
      ranks_(ranks),
      reproducible_(reproducible),
      even_(static_cast<std::size_t>(ranks)) {}

DeviceExchanges::Cut DeviceExchanges::even_cut(std::int64_t count) {
  const std::int64_t each = count / ranks_ / unit * unit;
  for (int rank = 0; rank < ranks_; ++rank)
    even_[static_cast<std::size_t>(rank)] = {.first = rank * each, .count = each};
  even_.back().count = count - even_.back().first;
  return {.slices = nullptr, .even = even_};
}

std::int64_t DeviceExchanges::even_part(const Cut& cut) const {
  std::int64_t each = 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::span<const ElementRange> ranges = cut.of(rank);
    if (ranges.size() != 1) return 0;
    if (rank == 0) each = ranges[0].count;
    const bool last = rank + 1 == ranks_;
    if (ranges[0].first != rank * each || (last ? ranges[0].count < each : ranges[0].count != each)) return 0;
  }
  return each;
}

std::size_t DeviceExchanges::most_ranges(const Cut& cut) const {
  std::size_t most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, cut.of(rank).size());
  return most;
}

void DeviceExchanges::tree_sum(const DeviceVector& vector, const TermPlan& plan) {
  if (ranks_ == 1 || vector.count == 0) return;
  const bool narrowed = narrows(vector.wire, vector.dtype);
  if (!reproducible_) {
    add_planes(vector, plan);
    if (!narrowed) {
      calls_.all_reduce(vector.values, vector.count, vector.dtype);
      return;
    }
    std::byte* const wire = calls_.scratch(bytes_for(vector.count, bytes_of(vector.wire)));
    calls_.narrow(vector.values, wire, vector.count, vector.wire);
    calls_.all_reduce(wire, vector.count, vector.wire);
    calls_.widen(wire, vector.values, vector.count, vector.wire);
    return;
  }
  const Cut cut = even_cut(vector.count);
  if (!narrowed) {
    sum_at_owners(vector, plan, cut, false);
    gather_from_owners(vector.values, bytes_of(vector.dtype), cut);
    return;
  }
  std::byte* const wire = sum_at_owners(vector, plan, cut, true);
  gather_from_owners(wire, bytes_of(vector.wire), cut);
  calls_.widen(wire, vector.values, vector.count, vector.wire);
}

void DeviceExchanges::reduce_scatter(const DeviceVector& vector, const TermPlan& plan, const Slices& slices) {
  if (ranks_ == 1 || vector.count == 0) return;
  const Cut cut{.slices = &slices, .even = {}};
  if (reproducible_) {
    sum_at_owners(vector, plan, cut, false);
    return;
  }
  add_planes(vector, plan);
  if (!narrows(vector.wire, vector.dtype)) {
    reduce_to_owners(vector.values, vector.dtype, cut);
    return;
  }
  const std::size_t wire_bytes = bytes_of(vector.wire), value_bytes = bytes_of(vector.dtype);
  std::byte* const wire = calls_.scratch(bytes_for(vector.count, wire_bytes));
  calls_.narrow(vector.values, wire, vector.count, vector.wire);
  reduce_to_owners(wire, vector.wire, cut);
  for (const ElementRange range : cut.of(rank_)) {
    calls_.widen(wire + bytes_for(range.first, wire_bytes),
                 vector.values + bytes_for(range.first, value_bytes), range.count, vector.wire);
  }
}

void DeviceExchanges::all_gather(const DeviceVector& vector, const Slices& slices) {
  if (ranks_ == 1 || vector.count == 0) return;
  gather_from_owners(vector.values, bytes_of(vector.dtype), {.slices = &slices, .even = {}});
}

void DeviceExchanges::add_planes(const DeviceVector& vector, const TermPlan& plan) {
  const int planes = plan.terms_of_rank[static_cast<std::size_t>(rank_)];
  if (planes == 0) calls_.zero(vector.values, bytes_for(vector.count, bytes_of(vector.dtype)));
  if (planes < 2) return;
  calls_.add({.program = &plan.own,
              .planes = vector.values,
              .plane_bytes = vector.plane_bytes,
              .sum = vector.values,
              .count = vector.count,
              .dtype = vector.dtype,
              .wire = vector.dtype});
}

void DeviceExchanges::reduce_to_owners(std::byte* values, DType dtype, const Cut& cut) {
  const std::size_t element_bytes = bytes_of(dtype);
  Group group(calls_);
  const std::int64_t each = even_part(cut);
  if (each > 0) {
    group.make_room(1);
    calls_.reduce_scatter(values, each, dtype);
  }
  for (int owner = each > 0 ? ranks_ - 1 : 0; owner < ranks_; ++owner) {
    for (ElementRange range : cut.of(owner)) {
      range = {.first = range.first + each, .count = range.count - each};  // a rest, where slices are even
      if (range.count == 0) continue;
      group.make_room(1);
      calls_.reduce(values + bytes_for(range.first, element_bytes), range.count, dtype, owner);
    }
  }
  group.end();
}

void DeviceExchanges::gather_from_owners(std::byte* values, std::size_t element_bytes, const Cut& cut) {
  Group group(calls_);
  const std::int64_t each = even_part(cut);
  if (each > 0) {
    group.make_room(1);
    calls_.all_gather(values, bytes_for(each, element_bytes));
  }
  for (int owner = each > 0 ? ranks_ - 1 : 0; owner < ranks_; ++owner) {
    for (ElementRange range : cut.of(owner)) {
      range = {.first = range.first + each, .count = range.count - each};  // a rest, where slices are even
      if (range.count == 0) continue;
      group.make_room(1);
      calls_.broadcast(values + bytes_for(range.first, element_bytes), bytes_for(range.count, element_bytes),
                       owner);
    }
  }
  group.end();
}

std::byte* DeviceExchanges::sum_at_owners(const DeviceVector& vector, const TermPlan& plan, const Cut& cut,
                                          bool keep_narrow) {
  const bool narrowed = narrows(vector.wire, vector.dtype);
  const DType wire = narrowed ? vector.wire : vector.dtype;
  const int own_terms = plan.terms_of_rank[static_cast<std::size_t>(rank_)];
  const std::size_t value_bytes = bytes_of(vector.dtype);

  // What is sent: the planes themselves, or their narrow copies (one, at least, has room for the result).
  Terms terms{vector.values, vector.plane_bytes, bytes_of(wire)};
  const auto copies = static_cast<std::size_t>(narrowed ? std::max(own_terms, 1) : 0);
  const std::size_t copy_bytes = bytes_for(padded(vector.count), terms.element_bytes);
  const std::size_t slot_bytes = bytes_for(slot_elements(cut.of(rank_)), terms.element_bytes);
  std::byte* const scratch =
      calls_.scratch(copies * copy_bytes + static_cast<std::size_t>(plan.slots) * slot_bytes);
  std::byte* const slots = scratch + copies * copy_bytes;
  if (narrowed) {
    for (int term = 0; term < own_terms; ++term) {
      const auto place = static_cast<std::size_t>(term);
      calls_.narrow(vector.values + place * vector.plane_bytes, scratch + place * copy_bytes, vector.count,
                    wire);
    }
    terms.first = scratch;
    terms.term_bytes = copy_bytes;
  }
  exchange_terms(terms, plan, cut, slots, slot_bytes);

  std::int64_t before = 0;
  for (const ElementRange range : cut.of(rank_)) {
    if (range.count == 0) continue;
    std::byte* const values = vector.values + bytes_for(range.first, value_bytes);
    calls_.add({.program = &plan.whole,
                .planes = values,
                .plane_bytes = vector.plane_bytes,
                .slots = slots + bytes_for(before, terms.element_bytes),
                .slot_bytes = slot_bytes,
                .sum = values,
                .narrow_sum = keep_narrow ? scratch + bytes_for(range.first, terms.element_bytes) : nullptr,
                .count = range.count,
                .dtype = vector.dtype,
                .wire = wire});
    before += padded(range.count);
  }
  return scratch;
}

void DeviceExchanges::exchange_terms(const Terms& terms, const TermPlan& plan, const Cut& cut,
                                     std::byte* slots, std::size_t slot_bytes) {
  // In one turn every rank sends to the rank `distance` after it, and receives from the one as far before it.
  // Turns, and windows of ranges so that a turn fits a group, are the same on all ranks.
  const std::size_t ranges = most_ranges(cut);
  const std::size_t window =
      std::max(std::size_t{1}, static_cast<std::size_t>(DeviceCalls::most_in_group / (2 * plan.most_terms)));
  Group group(calls_);
  for (std::size_t begin = 0; begin < ranges; begin += window) {
    const std::size_t end = std::min(begin + window, ranges);
    for (int distance = 1; distance < ranks_; ++distance) {
      group.make_room(2 * plan.most_terms * static_cast<int>(end - begin));
      send_terms(terms, plan, cut, (rank_ + distance) % ranks_, begin, end);
      receive_terms(terms, plan, cut, (rank_ + ranks_ - distance) % ranks_, begin, end, slots, slot_bytes);
    }
  }
  group.end();
}

void DeviceExchanges::send_terms(const Terms& terms, const TermPlan& plan, const Cut& cut, int to,
                                 std::size_t begin, std::size_t end) {
  const std::span<const ElementRange> ranges = cut.of(to);
  for (std::size_t i = begin; i < std::min(end, ranges.size()); ++i) {
    if (ranges[i].count == 0) continue;
    for (int term = 0; term < plan.terms_of_rank[static_cast<std::size_t>(rank_)]; ++term) {
      calls_.send(terms.first + static_cast<std::size_t>(term) * terms.term_bytes +
                      bytes_for(ranges[i].first, terms.element_bytes),
                  bytes_for(ranges[i].count, terms.element_bytes), to);
    }
  }
}

void DeviceExchanges::receive_terms(const Terms& terms, const TermPlan& plan, const Cut& cut, int from,
                                    std::size_t begin, std::size_t end, std::byte* slots,
                                    std::size_t slot_bytes) {
  const std::span<const ElementRange> ranges = cut.of(rank_);
  if (begin >= ranges.size()) return;
  std::int64_t before = slot_elements(ranges.first(begin));
  for (std::size_t i = begin; i < std::min(end, ranges.size()); ++i) {
    if (ranges[i].count == 0) continue;
    for (int term = 0; term < plan.terms_of_rank[static_cast<std::size_t>(from)]; ++term) {
      const auto slot =
          static_cast<std::size_t>(plan.first_slot_of_rank[static_cast<std::size_t>(from)] + term);
      calls_.receive(slots + slot * slot_bytes + bytes_for(before, terms.element_bytes),
                     bytes_for(ranges[i].count, terms.element_bytes), from);
    }
    before += padded(ranges[i].count);
  }
}

}  // namespace lockstep::comm
