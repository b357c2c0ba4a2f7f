// Private to the room: which rank writes and digests which bytes of the file. Pure arithmetic: every rank
// computes every rank's share.
//
// Writing is cut at multiples of 1 MiB of the file, so that no stripe of a parallel file system has two
// writers. Digests are of blocks counted from each tensor's first byte, so that they do not depend on where
// the tensor lies; a block belongs to the rank that writes its first byte, who looks up to a block beyond its
// own share for the rest of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

/// A tensor's place in the file.
struct Place {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::vector<Place> places_of(const FileIndex& index);

/// What one rank writes: `bytes` of tensor `tensor` from its byte `from`, at `offset` of the file.
struct Piece {
  std::size_t tensor = 0;
  std::uint64_t from = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The pieces of each rank, or of one, in file order. Over all ranks they cover each tensor exactly once.
std::vector<std::vector<Piece>> file_shares(std::span<const Place> places, int ranks);
std::vector<Piece> file_share(std::span<const Place> places, int rank, int ranks);

/// Blocks [first, first + count) of a tensor.
struct BlockRun {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The blocks that begin in a piece, perhaps none. Over all pieces of all ranks each block is there once.
BlockRun blocks_begun_in(const Piece& piece);

/// End of a block, counted from the tensor's first byte.
std::uint64_t end_of_block(std::uint64_t block, std::uint64_t tensor_bytes);

}  // namespace lockstep::checkpoint
