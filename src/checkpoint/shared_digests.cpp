#include "checkpoint/shared_digests.h"

#include <algorithm>

#include "checkpoint/digest.h"

namespace lockstep::checkpoint {
namespace {

/// The blocks that each rank digests, in its order.
std::vector<std::vector<BlockRun>> runs_by_rank(std::span<const Place> places, int ranks) {
  std::vector<std::vector<BlockRun>> runs;
  for (const std::vector<Piece>& pieces : file_shares(places, ranks)) {
    std::vector<BlockRun>& of_rank = runs.emplace_back();
    for (const Piece& piece : pieces) of_rank.push_back(blocks_begun_in(piece));
  }
  return runs;
}

}  // namespace

std::vector<std::uint64_t> combine_digests(std::span<const Place> places, std::span<const std::uint64_t> mine,
                                           comm::Communicator& communicator) {
  const std::vector<std::vector<BlockRun>> runs = runs_by_rank(places, communicator.size());
  std::uint64_t longest = 0;
  for (const std::vector<BlockRun>& of_rank : runs) {
    std::uint64_t blocks = 0;
    for (const BlockRun& run : of_rank) blocks += run.count;
    longest = std::max(longest, blocks);
  }
  std::vector<std::uint64_t> padded(mine.begin(), mine.end());
  padded.resize(longest);
  std::vector<std::uint64_t> gathered(longest * runs.size());
  if (longest > 0) communicator.all_gather(padded.data(), longest * sizeof(std::uint64_t), gathered.data());

  std::vector<std::vector<std::uint64_t>> blocks;
  for (const Place& place : places) blocks.emplace_back(blocks_of(place.bytes));
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    auto digest = gathered.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    for (const BlockRun& run : runs[rank]) {
      std::copy_n(digest, run.count, blocks[run.tensor].begin() + static_cast<std::ptrdiff_t>(run.first));
      digest += static_cast<std::ptrdiff_t>(run.count);
    }
  }
  std::vector<std::uint64_t> digests;
  for (const std::vector<std::uint64_t>& of_tensor : blocks) digests.push_back(digest_of_blocks(of_tensor));
  return digests;
}

}  // namespace lockstep::checkpoint
