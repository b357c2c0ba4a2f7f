// Private to the room: digests of many tensors, the work shared over ranks, one exchange for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/shares.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Digest of each tensor, from every rank's digests `mine` of the blocks that begin in its file_share, in the
/// order of its pieces. Collective; one exchange, of equal size on every rank.
std::vector<std::uint64_t> combine_digests(std::span<const Place> places, std::span<const std::uint64_t> mine,
                                           comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
