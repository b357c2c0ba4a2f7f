// Private to the room: which rank digests which blocks, and which rank writes which bytes of the file. Pure
// arithmetic: every rank computes every rank's share.
//
// The two differ. Digests are of blocks counted from each tensor's first byte, so that they do not depend on
// where the tensor lies; writing is cut at multiples of 1 MiB of the file, so that no stripe of a parallel
// file system has two writers. Ranks digest before the file exists; whoever wrote a byte, its digest is of
// what memory held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::checkpoint {

/// Blocks [first, first + count) of all tensors' blocks, numbered through in order.
struct BlockRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// By rank: contiguous, together all blocks, balanced by bytes.
std::vector<BlockRange> block_shares(std::span<const std::uint64_t> tensor_bytes, int ranks);

/// A tensor's place in the file.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// What one rank writes: `bytes` of tensor `tensor` from its byte `from`, at `offset` of the file.
struct Piece {
  std::size_t tensor = 0;
  std::uint64_t from = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The pieces of `rank`, in file order. Over all ranks they cover each tensor exactly once.
std::vector<Piece> file_share(std::span<const Place> places, int rank, int ranks);

}  // namespace lockstep::checkpoint
