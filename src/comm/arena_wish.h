// What ranks ask for when they allocate an arena together.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Collective. Throws UsageError, the same on all ranks, unless all want planes of one size, and any at all.
inline void agree_on_arena(Communicator& communicator, std::size_t plane_bytes, int planes) {
  struct Wish {
    std::uint64_t plane_bytes;
    std::int64_t planes;
  };
  const Wish wish{plane_bytes, planes};
  std::vector<Wish> wishes(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&wish, sizeof wish, wishes.data());
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const Wish& other = wishes[static_cast<std::size_t>(rank)];
    if (other.planes < 1)
      throw UsageError("arena on rank {}: {} planes; at least 1 is needed", rank, other.planes);
    if (other.plane_bytes != wishes.front().plane_bytes) {
      throw UsageError("arena: rank 0 asks for planes of {} bytes, rank {} for {}; all must ask for the same",
                       wishes.front().plane_bytes, rank, other.plane_bytes);
    }
  }
}

}  // namespace lockstep::comm
