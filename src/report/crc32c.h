// CRC32C (Castagnoli), the checksum of the records of an event file.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::report {

std::uint32_t crc32c(std::string_view data);

/// As records store it: rotated and shifted, so that the checksum of data that hold checksums is a good one.
inline std::uint32_t masked_crc32c(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace lockstep::report
