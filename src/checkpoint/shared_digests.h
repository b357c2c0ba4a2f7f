// Private to the room: digests of many tensors, the work shared over ranks, one exchange for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/shares.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Calls digest(tensor, offset_bytes, bytes) -> std::uint64_t for each block of `share`, in order.
template <class Digest>
std::vector<std::uint64_t> digest_share(std::span<const std::uint64_t> tensor_bytes, const BlockRange& share,
                                        const Digest& digest) {
  std::vector<std::uint64_t> digests;
  digests.reserve(share.count);
  std::uint64_t block = 0;
  for (std::size_t tensor = 0; tensor < tensor_bytes.size() && digests.size() < share.count; ++tensor) {
    const std::uint64_t blocks = blocks_of(tensor_bytes[tensor]);
    for (std::uint64_t b = block < share.first ? std::min(blocks, share.first - block) : 0;
         b < blocks && digests.size() < share.count; ++b) {
      const std::uint64_t offset = b * block_bytes;
      digests.push_back(digest(tensor, offset, std::min(block_bytes, tensor_bytes[tensor] - offset)));
    }
    block += blocks;
  }
  return digests;
}

/// Digest of each tensor, from every rank's digests of its share (block_shares). Collective; one exchange, of
/// equal size on every rank.
std::vector<std::uint64_t> combine_digests(std::span<const std::uint64_t> tensor_bytes,
                                           std::span<const BlockRange> shares,
                                           std::span<const std::uint64_t> mine,
                                           comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
