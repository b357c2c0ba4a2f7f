// The hash is compiled in from its header, so that its inner loop uses the instruction set this library is
// built for.
#include "checkpoint/digest.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>

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
  if (text.size() != 16) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace lockstep::checkpoint
