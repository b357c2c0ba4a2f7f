#include "comm/nccl/device_collectives.h"

#include <algorithm>
#include <numeric>

namespace lockstep::comm {
namespace {

constexpr std::int64_t unit = 32;  // elements: 64 bytes of the smallest type

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

/// A group that ends and begins again before it has too many calls.
class Group {
 public:
  explicit Group(DeviceCalls& calls) : calls_(calls) { calls_.begin_group(); }
  void end() { calls_.end_group(); }
  /// Called before `calls` more calls, the same number on every rank.
  void split_before(int calls) {
    if (held_ + calls > DeviceCalls::max_in_group) {
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

std::vector<int> one_rank_a_group(int ranks) {
  std::vector<int> groups(static_cast<std::size_t>(ranks));
  std::iota(groups.begin(), groups.end(), 0);
  return groups;
}

}  // namespace

DeviceSumPlan::DeviceSumPlan(const ShardMap& map, int rank)
    : SumPlan(map, one_rank_a_group(map.ranks()), rank),
      own(SumProgram::fold(static_cast<int>(accumulators.size()))) {}

DeviceCollectives::DeviceCollectives(DeviceCalls& calls, int rank, int ranks, bool reproducible)
    : calls_(calls),
      rank_(rank),
      ranks_(ranks),
      reproducible_(reproducible),
      even_(static_cast<std::size_t>(ranks)) {}

DeviceCollectives::Cut DeviceCollectives::even_cut(std::int64_t count) {
  const std::int64_t each = count / ranks_ / unit * unit;
  for (int rank = 0; rank < ranks_; ++rank)
    even_[static_cast<std::size_t>(rank)] = {.first = rank * each, .count = each};
  even_.back().count = count - even_.back().first;
  return {.slices = nullptr, .even = even_};
}

std::int64_t DeviceCollectives::even_part(const Cut& cut) const {
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

std::size_t DeviceCollectives::max_ranges(const Cut& cut) const {
  std::size_t max = 0;
  for (int rank = 0; rank < ranks_; ++rank) max = std::max(max, cut.of(rank).size());
  return max;
}

void DeviceCollectives::tree_sum(const DeviceVector& vector, const DeviceSumPlan& plan) {
  if (ranks_ == 1 || vector.count == 0) return;
  const bool cast = needs_cast(vector.comm_dtype, vector.dtype);
  if (!reproducible_) {
    add_accumulators(vector, plan);
    if (!cast) {
      calls_.all_reduce(vector.values, vector.count, vector.dtype);
      return;
    }
    std::byte* const comm_dtype = calls_.scratch(bytes_for(vector.count, bytes_of(vector.comm_dtype)));
    calls_.cast_to(vector.values, comm_dtype, vector.count, vector.comm_dtype);
    calls_.all_reduce(comm_dtype, vector.count, vector.comm_dtype);
    calls_.cast_from(comm_dtype, vector.values, vector.count, vector.comm_dtype);
    return;
  }
  const Cut cut = even_cut(vector.count);
  if (!cast) {
    sum_at_owners(vector, plan, cut, false);
    gather_from_owners(vector.values, bytes_of(vector.dtype), cut);
    return;
  }
  std::byte* const comm_dtype = sum_at_owners(vector, plan, cut, true);
  gather_from_owners(comm_dtype, bytes_of(vector.comm_dtype), cut);
  calls_.cast_from(comm_dtype, vector.values, vector.count, vector.comm_dtype);
}

void DeviceCollectives::reduce_scatter(const DeviceVector& vector, const DeviceSumPlan& plan,
                                       const Slices& slices) {
  if (ranks_ == 1 || vector.count == 0) return;
  const Cut cut{.slices = &slices, .even = {}};
  if (reproducible_) {
    sum_at_owners(vector, plan, cut, false);
    return;
  }
  add_accumulators(vector, plan);
  if (!needs_cast(vector.comm_dtype, vector.dtype)) {
    reduce_to_owners(vector.values, vector.dtype, cut);
    return;
  }
  const std::size_t sent_bytes = bytes_of(vector.comm_dtype), value_bytes = bytes_of(vector.dtype);
  std::byte* const comm_dtype = calls_.scratch(bytes_for(vector.count, sent_bytes));
  calls_.cast_to(vector.values, comm_dtype, vector.count, vector.comm_dtype);
  reduce_to_owners(comm_dtype, vector.comm_dtype, cut);
  for (const ElementRange range : cut.of(rank_)) {
    calls_.cast_from(comm_dtype + bytes_for(range.first, sent_bytes),
                     vector.values + bytes_for(range.first, value_bytes), range.count, vector.comm_dtype);
  }
}

void DeviceCollectives::all_gather(const DeviceVector& vector, const Slices& slices) {
  if (ranks_ == 1 || vector.count == 0) return;
  gather_from_owners(vector.values, bytes_of(vector.dtype), {.slices = &slices, .even = {}});
}

void DeviceCollectives::add_accumulators(const DeviceVector& vector, const DeviceSumPlan& plan) {
  const int accumulators = plan.partials_of_group[static_cast<std::size_t>(rank_)];
  if (accumulators == 0) calls_.zero(vector.values, bytes_for(vector.count, bytes_of(vector.dtype)));
  if (accumulators < 2) return;
  calls_.add({.program = &plan.own,
              .accumulators = vector.values,
              .accumulator_bytes = vector.accumulator_bytes,
              .sum = vector.values,
              .count = vector.count,
              .dtype = vector.dtype,
              .comm_dtype = vector.dtype});
}

void DeviceCollectives::reduce_to_owners(std::byte* values, DType dtype, const Cut& cut) {
  const std::size_t element_bytes = bytes_of(dtype);
  Group group(calls_);
  const std::int64_t each = even_part(cut);
  if (each > 0) {
    group.split_before(1);
    calls_.reduce_scatter(values, each, dtype);
  }
  for (int owner = each > 0 ? ranks_ - 1 : 0; owner < ranks_; ++owner) {
    for (ElementRange range : cut.of(owner)) {
      range = {.first = range.first + each,
               .count = range.count - each};  // the remainder, where slices are even
      if (range.count == 0) continue;
      group.split_before(1);
      calls_.reduce(values + bytes_for(range.first, element_bytes), range.count, dtype, owner);
    }
  }
  group.end();
}

void DeviceCollectives::gather_from_owners(std::byte* values, std::size_t element_bytes, const Cut& cut) {
  Group group(calls_);
  const std::int64_t each = even_part(cut);
  if (each > 0) {
    group.split_before(1);
    calls_.all_gather(values, bytes_for(each, element_bytes));
  }
  for (int owner = each > 0 ? ranks_ - 1 : 0; owner < ranks_; ++owner) {
    for (ElementRange range : cut.of(owner)) {
      range = {.first = range.first + each,
               .count = range.count - each};  // the remainder, where slices are even
      if (range.count == 0) continue;
      group.split_before(1);
      calls_.broadcast(values + bytes_for(range.first, element_bytes), bytes_for(range.count, element_bytes),
                       owner);
    }
  }
  group.end();
}

std::byte* DeviceCollectives::sum_at_owners(const DeviceVector& vector, const DeviceSumPlan& plan,
                                            const Cut& cut, bool keep_cast) {
  const bool cast = needs_cast(vector.comm_dtype, vector.dtype);
  const DType comm_dtype = cast ? vector.comm_dtype : vector.dtype;
  const int own_partials = plan.partials_of_group[static_cast<std::size_t>(rank_)];
  const std::size_t value_bytes = bytes_of(vector.dtype);

  // Sends the accumulators themselves or their cast copies (at least one, which holds the result as well).
  Partials partials{vector.values, vector.accumulator_bytes, bytes_of(comm_dtype)};
  const auto copies = static_cast<std::size_t>(cast ? std::max(own_partials, 1) : 0);
  const std::size_t copy_bytes = bytes_for(padded(vector.count), partials.element_bytes);
  const std::size_t slot_bytes = bytes_for(slot_elements(cut.of(rank_)), partials.element_bytes);
  std::byte* const scratch =
      calls_.scratch(copies * copy_bytes + static_cast<std::size_t>(plan.received) * slot_bytes);
  std::byte* const slots = scratch + copies * copy_bytes;
  if (cast) {
    for (int partial = 0; partial < own_partials; ++partial) {
      const auto index = static_cast<std::size_t>(partial);
      calls_.cast_to(vector.values + index * vector.accumulator_bytes, scratch + index * copy_bytes,
                     vector.count, comm_dtype);
    }
    partials.first = scratch;
    partials.partial_bytes = copy_bytes;
  }
  trade_partials(partials, plan, cut, slots, slot_bytes);

  std::int64_t before = 0;
  for (const ElementRange range : cut.of(rank_)) {
    if (range.count == 0) continue;
    std::byte* const values = vector.values + bytes_for(range.first, value_bytes);
    calls_.add({.program = &plan.whole,
                .accumulators = values,
                .accumulator_bytes = vector.accumulator_bytes,
                .slots = plan.received ? slots + bytes_for(before, partials.element_bytes) : nullptr,
                .slot_bytes = slot_bytes,
                .sum = values,
                .cast_sum = keep_cast ? scratch + bytes_for(range.first, partials.element_bytes) : nullptr,
                .count = range.count,
                .dtype = vector.dtype,
                .comm_dtype = comm_dtype});
    before += padded(range.count);
  }
  return scratch;
}

void DeviceCollectives::trade_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut,
                                       std::byte* slots, std::size_t slot_bytes) {
  // In one round every rank sends to the rank `distance` after it and receives from the one `distance` before
  // it. Rounds are the same on all ranks, and so are the windows of ranges that make a round fit a group.
  const std::size_t ranges = max_ranges(cut);
  const std::size_t window =
      std::max(std::size_t{1}, static_cast<std::size_t>(DeviceCalls::max_in_group / (2 * plan.max_partials)));
  Group group(calls_);
  for (std::size_t begin = 0; begin < ranges; begin += window) {
    const std::size_t end = std::min(begin + window, ranges);
    for (int distance = 1; distance < ranks_; ++distance) {
      group.split_before(2 * plan.max_partials * static_cast<int>(end - begin));
      send_partials(partials, plan, cut, (rank_ + distance) % ranks_, begin, end);
      receive_partials(partials, plan, cut, (rank_ + ranks_ - distance) % ranks_, begin, end, slots,
                       slot_bytes);
    }
  }
  group.end();
}

void DeviceCollectives::send_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut,
                                      int to, std::size_t begin, std::size_t end) {
  const std::span<const ElementRange> ranges = cut.of(to);
  for (std::size_t i = begin; i < std::min(end, ranges.size()); ++i) {
    if (ranges[i].count == 0) continue;
    for (int partial = 0; partial < plan.partials_of_group[static_cast<std::size_t>(rank_)]; ++partial) {
      calls_.send(partials.first + static_cast<std::size_t>(partial) * partials.partial_bytes +
                      bytes_for(ranges[i].first, partials.element_bytes),
                  bytes_for(ranges[i].count, partials.element_bytes), to);
    }
  }
}

void DeviceCollectives::receive_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut,
                                         int from, std::size_t begin, std::size_t end, std::byte* slots,
                                         std::size_t slot_bytes) {
  const std::span<const ElementRange> ranges = cut.of(rank_);
  if (begin >= ranges.size()) return;
  std::int64_t before = slot_elements(ranges.first(begin));
  for (std::size_t i = begin; i < std::min(end, ranges.size()); ++i) {
    if (ranges[i].count == 0) continue;
    for (int partial = 0; partial < plan.partials_of_group[static_cast<std::size_t>(from)]; ++partial) {
      const auto slot =
          static_cast<std::size_t>(plan.first_slot_of_group[static_cast<std::size_t>(from)] + partial);
      calls_.receive(slots + slot * slot_bytes + bytes_for(before, partials.element_bytes),
                     bytes_for(ranges[i].count, partials.element_bytes), from);
    }
    before += padded(ranges[i].count);
  }
}

}  // namespace lockstep::comm
