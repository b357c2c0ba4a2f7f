// Private to the room: digests of elements and texts, XXH3-64 throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

/// Tensors are digested in blocks of this size, counted from the tensor's first byte.
inline constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return (bytes + block_bytes - 1) / block_bytes; }

std::uint64_t digest_of(const void* data, std::size_t bytes);
/// A tensor's digest: that of its blocks' digests, eight little-endian bytes each. No block for a tensor
/// without elements.
std::uint64_t digest_of_blocks(std::span<const std::uint64_t> block_digests);

/// 16 hexadecimal digits.
std::string to_hex(std::uint64_t digest);
/// Inverse of to_hex; false on anything else.
bool from_hex(std::string_view text, std::uint64_t& digest);

}  // namespace lockstep::checkpoint
