#include <nmmintrin.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>

#include "base/processor.h"

namespace lockstep {

void flush_denormals() noexcept {
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
}

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

// Every x86-64 processor since 2009 has SSE 4.2; LOCKSTEP_ARCH may be less.
[[gnu::target("sse4.2")]] std::uint32_t crc32c_with_word(std::uint32_t crc, std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
[[gnu::target("sse4.2")]] std::uint32_t crc32c_with_byte(std::uint32_t crc, std::uint8_t byte) noexcept {
  return _mm_crc32_u8(crc, byte);
}

Interruption interruption_of(const void* signal_context) noexcept {
  const auto& registers = static_cast<const ucontext_t*>(signal_context)->uc_mcontext.gregs;
  return {.instruction = reinterpret_cast<void*>(registers[REG_RIP]),
          .stack_pointer = static_cast<std::uintptr_t>(registers[REG_RSP])};
}

bool is_after_call(const std::uint8_t* address) noexcept {
  if (address[-5] == 0xe8) return true;       // call rel32
  for (const int length : {2, 3, 4, 6, 7}) {  // call r/m64
    if (address[-length] == 0xff && (address[1 - length] & 0x38) == 0x10) return true;
  }
  return false;
}

}  // namespace lockstep
