// Signatures and texts of exchanges.
#include "comm/exchange.h"

#include <fmt/format.h>

#include "comm/mix.h"

namespace lockstep::comm {
namespace {

const char* name_of(Exchange::Kind kind) {
  switch (kind) {
    case Exchange::Kind::sum:
      return "a sum";
    case Exchange::Kind::reduce_scatter:
      return "a reduce-scatter";
    case Exchange::Kind::all_gather:
      return "an all-gather";
  }
  return "an unknown exchange";
}

}  // namespace

std::uint64_t Exchange::signature() const {
  std::uint64_t result = mixed(static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(dtype));
  result = mixed(result, static_cast<std::uint64_t>(wire));
  result = mixed(result, static_cast<std::uint64_t>(shards));
  result = mixed(result, arena);
  result = mixed(result, offset_bytes);
  result = mixed(result, static_cast<std::uint64_t>(count));
  return mixed(result, slices);
}

std::string describe(const Exchange& exchange, const Exchange& other) {
  std::string text = fmt::format("{} of {} {} elements at byte {}", name_of(exchange.kind), exchange.count,
                                 to_string(exchange.dtype), exchange.offset_bytes);
  if (exchange.arena != other.arena) text += fmt::format(" of arena {}", exchange.arena);
  if (exchange.shards != other.shards) text += fmt::format(" over {} shards", exchange.shards);
  if (exchange.wire != other.wire) text += fmt::format(" sent as {}", to_string(exchange.wire));
  if (exchange.kind == other.kind && exchange.slices != other.slices)
    text += fmt::format(" in slices {:016x}", exchange.slices);
  return text;
}

std::string describe(const GatherNote& gather) {
  if (gather.kind == GatherNote::Kind::equal) return fmt::format("{} bytes of each rank", gather.bytes);
  return fmt::format("{} bytes of all ranks, sizes {:016x}", gather.bytes, gather.sizes);
}

}  // namespace lockstep::comm
