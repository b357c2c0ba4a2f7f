#include "comm/collective.h"

#include <fmt/format.h>

#include <vector>

#include "comm/sum_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::comm {
namespace {

const char* name_of(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::sum:
      return "a sum";
    case Collective::Kind::reduce_scatter:
      return "a reduce-scatter";
    default:
      return "an all-gather";
  }
}

/// "a reduce-scatter of 100 float32 elements at byte 64 of flat buffer 1 over 4 shards". Details are shown if
/// `other` differs in them.
std::string describe(const Collective& collective, const Collective& other) {
  using Kind = Collective::Kind;
  if (collective.kind == Kind::host_gather)
    return fmt::format("a gather of {} bytes of each rank", collective.count);
  if (collective.kind == Kind::unequal_host_gather)
    return fmt::format("a gather of {} bytes of all ranks, sizes {:016x}", collective.count,
                       collective.slices);
  if (collective.kind == Kind::broadcast)
    return fmt::format("a broadcast of {} bytes from rank {}", collective.count, collective.shards);
  if (collective.kind == Kind::all_to_all) return "an all-to-all";
  if (collective.kind == Kind::wait) return "a wait for sums";
  if (collective.on_host()) return collective.kind == Kind::barrier ? "a barrier" : "a split";
  std::string text = fmt::format("{} of {} {} elements at byte {}", name_of(collective.kind),
                                 collective.count, to_string(collective.dtype), collective.offset_bytes);
  if (collective.flat_buffer != other.flat_buffer)
    text += fmt::format(" of flat buffer {}", collective.flat_buffer);
  if (collective.shards != other.shards) text += fmt::format(" over {} shards", collective.shards);
  if (collective.comm_dtype != other.comm_dtype)
    text += fmt::format(" sent as {}", to_string(collective.comm_dtype));
  if (collective.kind == other.kind && collective.slices != other.slices)
    text += fmt::format(" in slices {:016x}", collective.slices);
  return text;
}

}  // namespace

std::uint64_t Collective::signature() const {
  return hash_of(kind, dtype, comm_dtype, shards, flat_buffer, offset_bytes, count, slices, call.digest);
}

std::string difference(std::uint64_t number, int rank, const Collective& collective, int other_rank,
                       const Collective& other) {
  if (!collective.on_host())
    return fmt::format(
        "collective {}: rank {} started {}, rank {} {}; every rank must start the same collectives in the "
        "same order",
        number, rank, describe(collective, other), other_rank, describe(other, collective));
  const auto text = [](const Collective& mine, const Collective& theirs) {
    const std::string_view call = mine.call.phrase, their_call = theirs.call.phrase;
    const bool same_sums = mine.flat_buffer == theirs.flat_buffer;
    if (mine.call.digest == theirs.call.digest)
      return fmt::format("{} ({}{})", call, describe(mine, theirs),
                         same_sums ? "" : fmt::format(" after {} sums", mine.flat_buffer));
    const auto up_to = [](std::string_view whole, std::string_view end) {
      return whole.substr(0, whole.find(end));
    };
    const std::string_view outer = up_to(call, within), their_outer = up_to(their_call, within);
    if (outer == their_outer) return std::string(call);
    return std::string(up_to(outer, of) == up_to(their_outer, of) ? outer : up_to(outer, of));
  };
  return fmt::format("rank {} {}, but rank {} {}; every rank must make the same calls in the same order",
                     rank, text(collective, other), other_rank, text(other, collective));
}

void check_elements(const TreeSum& sum, int rank) {
  if (!sum.flat_buffer) throw UsageError("tree sum on rank {}: no flat buffer", rank);
  if (sum.offset_bytes % 64 != 0) {
    throw UsageError("tree sum on rank {}: offset of {} bytes is not a multiple of 64", rank,
                     sum.offset_bytes);
  }
  const std::size_t accumulator_bytes = sum.flat_buffer->accumulator_bytes();
  if (sum.count < 0 || sum.offset_bytes > accumulator_bytes ||
      static_cast<std::size_t>(sum.count) > (accumulator_bytes - sum.offset_bytes) / bytes_of(sum.dtype)) {
    throw UsageError(
        "tree sum on rank {}: {} {} elements at byte {} do not fit into an accumulator of {} bytes", rank,
        sum.count, to_string(sum.dtype), sum.offset_bytes, accumulator_bytes);
  }
}

void check_tree_sum(const TreeSum& sum, const ShardMap& map, int rank, int size) {
  check_elements(sum, rank);
  if (map.ranks() != size) {
    throw UsageError("tree sum on rank {}: the shard map is for {} ranks, the communicator has {}", rank,
                     map.ranks(), size);
  }
  if (sum.dtype != DType::float32 && sum.dtype != DType::float64) {
    throw UsageError("tree sum on rank {}: cannot sum {} elements, only float32 and float64", rank,
                     to_string(sum.dtype));
  }
  if (sum.comm_dtype != DType::float32 && sum.comm_dtype != DType::bfloat16 &&
      sum.comm_dtype != DType::float16) {
    throw UsageError(
        "tree sum on rank {}: the communication dtype {} is invalid; use float32, bfloat16 or float16", rank,
        to_string(sum.comm_dtype));
  }
}

void check_accumulators(const TreeSum& sum, const SumPlan& plan, int rank) {
  const int needed = plan.accumulators_of_rank[static_cast<std::size_t>(rank)];
  if (sum.flat_buffer->accumulators() < needed) {
    throw UsageError("tree sum on rank {}: its shards need {} accumulators, the flat buffer has {}", rank,
                     needed, sum.flat_buffer->accumulators());
  }
}

void check_slices(const TreeSum& vector, const Slices& slices, int rank, int size) {
  if (slices.ranks() != size || slices.count() != vector.count) {
    throw UsageError(
        "collective on rank {}: slices of {} elements among {} ranks for {} elements and {} ranks", rank,
        slices.count(), slices.ranks(), vector.count, size);
  }
}

void check_sizes(std::size_t sizes, int rank, int size) {
  if (sizes != static_cast<std::size_t>(size))
    throw UsageError("gather on rank {}: {} sizes for {} ranks", rank, sizes, size);
}

void check_started(Work work, Work last, int rank) {
  if (work > last) throw UsageError("collective on rank {}: the work handle {} is invalid", rank, work);
}

void agree_on_buffer(HostGroup& group, std::size_t accumulator_bytes, int accumulators) {
  struct Size {
    std::uint64_t accumulator_bytes;
    std::int64_t accumulators;
  };
  const std::vector<Size> sizes = all_gather_values(group, Size{accumulator_bytes, accumulators});
  for (int rank = 0; rank < group.size(); ++rank) {
    const Size& other = sizes[static_cast<std::size_t>(rank)];
    if (other.accumulators < 1)
      throw UsageError("flat buffer on rank {}: {} accumulators; at least 1 is needed", rank,
                       other.accumulators);
    if (other.accumulator_bytes != sizes.front().accumulator_bytes) {
      throw UsageError(
          "flat buffer: rank 0 requests accumulators of {} bytes, rank {} of {}; all must request the same "
          "size",
          sizes.front().accumulator_bytes, rank, other.accumulator_bytes);
    }
  }
}

}  // namespace lockstep::comm
