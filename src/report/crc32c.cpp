#include "report/crc32c.h"

#include <nmmintrin.h>

#include <cstring>

namespace lockstep::report {

// Every x86-64 processor since 2009 has SSE 4.2; LOCKSTEP_ARCH may be less.
__attribute__((target("sse4.2"))) std::uint32_t crc32c(std::string_view data) {
  std::uint64_t crc = 0xffffffffU;
  std::size_t done = 0;
  for (; done + 8 <= data.size(); done += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + done, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; done < data.size(); ++done) rest = _mm_crc32_u8(rest, static_cast<unsigned char>(data[done]));
  return ~rest;
}

}  // namespace lockstep::report
