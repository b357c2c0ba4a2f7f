// What every transport asks of a sum before it starts it.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Throws UsageError unless the elements lie in the arena.
inline void check_elements(const TreeSum& sum, int rank) {
  if (!sum.arena) throw UsageError("tree sum on rank {}: no arena", rank);
  if (sum.offset_bytes % 64 != 0) {
    throw UsageError("tree sum on rank {}: offset of {} bytes is not a multiple of 64", rank,
                     sum.offset_bytes);
  }
  const std::size_t plane_bytes = sum.arena->plane_bytes();
  if (sum.count < 0 || sum.offset_bytes > plane_bytes ||
      static_cast<std::size_t>(sum.count) > (plane_bytes - sum.offset_bytes) / bytes_of(sum.dtype)) {
    throw UsageError("tree sum on rank {}: {} {} elements at byte {} do not fit a plane of {} bytes", rank,
                     sum.count, to_string(sum.dtype), sum.offset_bytes, plane_bytes);
  }
}

/// Throws UsageError unless this rank can take part in `sum` over `map`.
inline void check_tree_sum(const TreeSum& sum, const ShardMap& map, int rank, int size) {
  check_elements(sum, rank);
  if (map.ranks() != size) {
    throw UsageError("tree sum on rank {}: the shard map is for {} ranks, the communicator has {}", rank,
                     map.ranks(), size);
  }
  if (sum.dtype != DType::float32 && sum.dtype != DType::float64) {
    throw UsageError("tree sum on rank {}: {} elements cannot be summed, only float32 and float64", rank,
                     to_string(sum.dtype));
  }
  if (sum.wire != DType::float32 && sum.wire != DType::bfloat16 && sum.wire != DType::float16) {
    throw UsageError("tree sum on rank {}: nothing is sent as {}, only as float32, bfloat16 or float16", rank,
                     to_string(sum.wire));
  }
}

/// Throws UsageError unless `slices` share the elements among `size` ranks.
inline void check_slices(const TreeSum& vector, const Slices& slices, int rank, int size) {
  if (slices.ranks() != size || slices.count() != vector.count) {
    throw UsageError("exchange on rank {}: slices of {} elements among {} ranks for {} elements and {} ranks",
                     rank, slices.count(), slices.ranks(), vector.count, size);
  }
}

/// Throws UsageError unless there is a size for every rank.
inline void check_sizes(std::span<const std::size_t> bytes_of_rank, int rank, int size) {
  if (bytes_of_rank.size() != static_cast<std::size_t>(size)) {
    throw UsageError("gather on rank {}: {} sizes for {} ranks", rank, bytes_of_rank.size(), size);
  }
}

}  // namespace lockstep::comm
