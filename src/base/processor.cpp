#include "base/processor.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/cores.h"

namespace lockstep {

void flush_denormals() noexcept {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
}

std::string instruction_set() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return __builtin_cpu_supports("avx512bf16") ? "avx512_bf16" : "avx512";
  }
  return __builtin_cpu_supports("avx2") ? "avx2" : "sse4";
}

int available_cores() { return std::max(1, static_cast<int>(given_cores().size())); }

void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t line_bytes = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t to_line = -reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  const std::size_t head = std::min(to_line, bytes);
  std::memcpy(target, source, head);
  target += head, source += head, bytes -= head;
  for (; bytes >= line_bytes; target += line_bytes, source += line_bytes, bytes -= line_bytes) {
    __m128i line[4];
    std::memcpy(line, source, sizeof line);
    for (int quarter = 0; quarter < 4; ++quarter)
      _mm_stream_si128(reinterpret_cast<__m128i*>(target) + quarter, line[quarter]);
  }
  std::memcpy(target, source, bytes);
  _mm_sfence();  // makes the stores visible before anything that follows
}

}  // namespace lockstep
