// Private to the room: a stored tensor, block by block, in memory of one block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/files.h"
#include "checkpoint/digest.h"
#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

class BlockReader {
 public:
  explicit BlockReader(const FileIndex& index) : file_(index.file), buffer_(block_bytes) {}

  /// Bytes of a tensor, at most a block of them; valid until the next call.
  std::span<const std::byte> read(const TensorEntry& tensor, std::uint64_t offset, std::uint64_t bytes) {
    file_->read_at(tensor.offset + offset, buffer_.data(), bytes);
    return std::span<const std::byte>(buffer_).first(bytes);
  }

  /// Hands every block of a tensor to use(bytes), and returns whether its digest is right.
  template <class Use>
  bool read_all(const TensorEntry& tensor, const Use& use) {
    std::vector<std::uint64_t> digests;
    for (std::uint64_t done = 0; done < tensor.bytes; done += block_bytes) {
      const auto bytes = read(tensor, done, std::min(block_bytes, tensor.bytes - done));
      digests.push_back(digest_of(bytes.data(), bytes.size()));
      use(bytes);
    }
    return digest_of_blocks(digests) == tensor.digest;
  }

 private:
  std::shared_ptr<const OpenFile> file_;
  std::vector<std::byte> buffer_;
};

}  // namespace lockstep::checkpoint
