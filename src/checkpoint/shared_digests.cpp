#include "checkpoint/shared_digests.h"

#include <algorithm>

namespace lockstep::checkpoint {

std::vector<std::uint64_t> combine_digests(std::span<const std::uint64_t> tensor_bytes,
                                           std::span<const BlockRange> shares,
                                           std::span<const std::uint64_t> mine,
                                           comm::Communicator& communicator) {
  std::uint64_t longest = 0;
  for (const BlockRange& share : shares) longest = std::max(longest, share.count);
  std::vector<std::uint64_t> padded(mine.begin(), mine.end());
  padded.resize(longest);
  std::vector<std::uint64_t> gathered(longest * shares.size());
  if (longest > 0) communicator.all_gather(padded.data(), longest * sizeof(std::uint64_t), gathered.data());

  std::vector<std::uint64_t> blocks;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const auto first = gathered.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    blocks.insert(blocks.end(), first, first + static_cast<std::ptrdiff_t>(shares[rank].count));
  }
  std::vector<std::uint64_t> digests;
  std::size_t block = 0;
  for (const std::uint64_t bytes : tensor_bytes) {
    const std::size_t count = blocks_of(bytes);
    digests.push_back(digest_of_blocks(std::span(blocks).subspan(block, count)));
    block += count;
  }
  return digests;
}

}  // namespace lockstep::checkpoint
