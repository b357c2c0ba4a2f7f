// Private to the module: tensors in blocks of 1 MiB: the ranks that write and digest them, and verified
// reading.
//
// Ranks write between multiples of 1 MiB of the file, so that no stripe of a parallel file system has two
// writers. Digests (XXH3-64) are of blocks counted from each tensor's first byte, so that they do not depend
// on the tensor's offset. A block belongs to the rank that writes its first byte; the rest of it may be in
// the next rank's share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Tensors are digested in blocks of this size, counted from the tensor's first byte.
inline constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + block_bytes - 1) / block_bytes; }

std::uint64_t digest_of(const void* data, std::size_t bytes);
/// A tensor's digest: that of its blocks' digests, eight little-endian bytes each. A tensor without elements
/// has no block.
std::uint64_t digest_of_blocks(std::span<const std::uint64_t> block_digests);

/// 16 hexadecimal digits.
std::string to_hex(std::uint64_t digest);
/// Inverse of to_hex; false on any other text.
bool from_hex(std::string_view text, std::uint64_t& digest);

/// The position of a tensor in the file.
struct FileExtent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::vector<FileExtent> file_extents_of(const FileIndex& index);

/// Part of one rank's share: `bytes` of tensor `tensor` from its byte `from`, at `offset` of the file.
struct TensorExtent {
  std::size_t tensor = 0;
  std::uint64_t from = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The extents of each rank, or of one, in file order. Over all ranks they cover each tensor exactly once.
std::vector<std::vector<TensorExtent>> extents_by_rank(std::span<const FileExtent> tensors, int ranks);
std::vector<TensorExtent> extents_of_rank(std::span<const FileExtent> tensors, int rank, int ranks);

/// Blocks [first, first + count) of a tensor.
struct BlockRun {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The blocks that begin in an extent. Over all extents of all ranks each block occurs once.
BlockRun blocks_begun_in(const TensorExtent& extent);

/// End of a block, counted from the tensor's first byte.
std::uint64_t end_of_block(std::uint64_t block, std::uint64_t tensor_bytes);

/// Digest of each tensor, from the digests `mine` of the blocks that begin in this rank's extents, in their
/// order. Collective; one all_gather, of equal size on every rank.
std::vector<std::uint64_t> combine_digests(std::span<const FileExtent> tensors,
                                           std::span<const std::uint64_t> mine, comm::HostGroup& world);

/// Reads and digests a stored tensor block by block. For one thread.
class BlockReader {
 public:
  /// Reads the whole tensor into `out`, which has space for its bytes; if null, into memory of one block.
  /// `file` outlives the reader.
  BlockReader(const OpenFile& file, const TensorEntry& tensor, std::byte* out = nullptr);
  /// Reads some of its blocks.
  BlockReader(const OpenFile& file, const TensorEntry& tensor, const BlockRun& blocks);

  /// The next block; empty after the last one. Without `out` valid until the next call. DataError or
  /// FailureError as OpenFile::read_at.
  std::span<const std::byte> next();
  /// Digests of the blocks read so far.
  const std::vector<std::uint64_t>& digests() const { return digests_; }
  /// Whether all blocks of the tensor were read and have the stored digest.
  bool digest_fits() const { return digest_of_blocks(digests_) == tensor_.digest; }
  /// Reads the rest. DataError "FILE: /model/NAME is damaged: its digest does not fit".
  void finish();

 private:
  const OpenFile& file_;
  const TensorEntry& tensor_;
  std::byte* out_;
  std::vector<std::byte> memory_;  // of one block, without `out`
  std::uint64_t at_, end_;         // bytes of the tensor
  std::vector<std::uint64_t> digests_;
};

}  // namespace lockstep::checkpoint
