#include "checkpoint/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "lockstep/base/error.h"

// The hash is compiled in from its header, so that its inner loop uses the instruction set this library is
// built for.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep::checkpoint {

static_assert(std::endian::native == std::endian::little,
              "digests of digests are defined on little-endian bytes");

std::uint64_t digest_of(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

std::uint64_t digest_of_blocks(std::span<const std::uint64_t> block_digests) {
  return XXH3_64bits(block_digests.data(), block_digests.size_bytes());
}

std::string to_hex(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

bool from_hex(std::string_view text, std::uint64_t& digest) {
  return text.size() == 16 && parse_number(text, digest, 16);
}

namespace {

/// floor(total * rank / ranks), without overflow.
std::uint64_t fraction(std::uint64_t total, int rank, int ranks) {
  const auto r = static_cast<std::uint64_t>(rank), n = static_cast<std::uint64_t>(ranks);
  return total / n * r + total % n * r / n;
}

/// Tensors by offset, without empty ones, which have no offset.
std::vector<std::size_t> order_in_file(std::span<const FileExtent> tensors) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].bytes > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tensors[a].offset < tensors[b].offset; });
  return order;
}

/// File offsets between which each rank writes: multiples of 1 MiB near equal shares of the payload.
std::vector<std::uint64_t> cuts_of(std::span<const FileExtent> tensors, std::span<const std::size_t> order,
                                   int ranks) {
  std::uint64_t total = 0, end = 0;
  for (const std::size_t i : order) {
    total += tensors[i].bytes;
    end = std::max(end, tensors[i].offset + tensors[i].bytes);
  }
  std::vector<std::uint64_t> cuts{0};
  std::uint64_t before = 0;  // payload bytes before tensors[order[at]]
  std::size_t at = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    const std::uint64_t target = fraction(total, rank, ranks);
    while (at < order.size() && before + tensors[order[at]].bytes < target)
      before += tensors[order[at++]].bytes;
    const std::uint64_t exact = at < order.size() ? tensors[order[at]].offset + (target - before) : end;
    cuts.push_back((exact + block_bytes / 2) / block_bytes * block_bytes);
  }
  cuts.push_back(std::max(end, cuts.back()));
  return cuts;
}

}  // namespace

std::vector<FileExtent> file_extents_of(const FileIndex& index) {
  std::vector<FileExtent> tensors;
  for (const TensorEntry& tensor : index.tensors) tensors.push_back({tensor.offset, tensor.bytes});
  return tensors;
}

std::vector<std::vector<TensorExtent>> extents_by_rank(std::span<const FileExtent> tensors, int ranks) {
  const std::vector<std::size_t> order = order_in_file(tensors);
  const std::vector<std::uint64_t> cuts = cuts_of(tensors, order, ranks);
  std::vector<std::vector<TensorExtent>> shares(static_cast<std::size_t>(ranks));
  for (const std::size_t tensor : order) {
    const FileExtent& tensor_extent = tensors[tensor];
    const std::uint64_t end = tensor_extent.offset + tensor_extent.bytes;
    const auto after = std::upper_bound(cuts.begin() + 1, cuts.end(), tensor_extent.offset);
    for (auto rank = static_cast<std::size_t>(after - cuts.begin()) - 1;
         rank < shares.size() && cuts[rank] < end; ++rank) {
      const std::uint64_t first = std::max(cuts[rank], tensor_extent.offset),
                          last = std::min(cuts[rank + 1], end);
      if (first < last) shares[rank].push_back({tensor, first - tensor_extent.offset, first, last - first});
    }
  }
  return shares;
}

std::vector<TensorExtent> extents_of_rank(std::span<const FileExtent> tensors, int rank, int ranks) {
  return extents_by_rank(tensors, ranks)[static_cast<std::size_t>(rank)];
}

BlockRun blocks_begun_in(const TensorExtent& extent) {
  const std::uint64_t first = blocks_of(extent.from);
  return {extent.tensor, first, blocks_of(extent.from + extent.bytes) - first};
}

std::uint64_t end_of_block(std::uint64_t block, std::uint64_t tensor_bytes) {
  return std::min((block + 1) * block_bytes, tensor_bytes);
}

namespace {

/// The blocks that each rank digests, in its order.
std::vector<std::vector<BlockRun>> runs_by_rank(std::span<const FileExtent> tensors, int ranks) {
  std::vector<std::vector<BlockRun>> runs;
  for (const std::vector<TensorExtent>& extents : extents_by_rank(tensors, ranks)) {
    std::vector<BlockRun>& of_rank = runs.emplace_back();
    for (const TensorExtent& extent : extents) of_rank.push_back(blocks_begun_in(extent));
  }
  return runs;
}

}  // namespace

std::vector<std::uint64_t> combine_digests(std::span<const FileExtent> tensors,
                                           std::span<const std::uint64_t> mine, comm::HostGroup& world) {
  const std::vector<std::vector<BlockRun>> runs = runs_by_rank(tensors, world.size());
  std::uint64_t longest = 0;
  for (const std::vector<BlockRun>& of_rank : runs) {
    std::uint64_t blocks = 0;
    for (const BlockRun& run : of_rank) blocks += run.count;
    longest = std::max(longest, blocks);
  }
  std::vector<std::uint64_t> padded(mine.begin(), mine.end());
  padded.resize(longest);
  std::vector<std::uint64_t> gathered(longest * runs.size());
  if (longest > 0) world.all_gather(padded.data(), longest * sizeof(std::uint64_t), gathered.data());

  std::vector<std::vector<std::uint64_t>> blocks;
  for (const FileExtent& tensor_extent : tensors) blocks.emplace_back(blocks_of(tensor_extent.bytes));
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

BlockReader::BlockReader(const OpenFile& file, const TensorEntry& tensor, std::byte* out)
    : file_(file), tensor_(tensor), out_(out), at_(0), end_(tensor.bytes) {
  if (!out_) memory_.resize(std::min(block_bytes, end_));
}

BlockReader::BlockReader(const OpenFile& file, const TensorEntry& tensor, const BlockRun& blocks)
    : BlockReader(file, tensor) {
  at_ = blocks.first * block_bytes;
  end_ = std::min((blocks.first + blocks.count) * block_bytes, tensor.bytes);
}

std::span<const std::byte> BlockReader::next() {
  if (at_ >= end_) return {};
  const std::uint64_t bytes = std::min(block_bytes, end_ - at_);
  std::byte* const block = out_ ? out_ + at_ : memory_.data();
  file_.read_at(tensor_.offset + at_, block, bytes);
  digests_.push_back(digest_of(block, bytes));
  at_ += bytes;
  return {block, bytes};
}

void BlockReader::finish() {
  while (!next().empty()) {
  }
  if (!digest_fits())
    throw DataError("{}: {} is damaged: its digest does not match", file_.path(), tensor_.path());
}

}  // namespace lockstep::checkpoint
