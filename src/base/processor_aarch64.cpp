#include <arm_acle.h>
#include <ucontext.h>

#include <cstring>

#include "base/processor.h"

namespace lockstep {

void flush_denormals() noexcept {
  constexpr std::uint64_t flush_to_zero = 1 << 24;  // operands, too
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | flush_to_zero));
}

// Processors recognise memory that is overwritten as a whole, and do not read it.
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

// Every processor since Armv8.1 has the instructions, and so have those of Armv8.0 in Linux clusters.
[[gnu::target("+crc")]] std::uint32_t crc32c_with_word(std::uint32_t crc, std::uint64_t word) noexcept {
  return __crc32cd(crc, word);
}
[[gnu::target("+crc")]] std::uint32_t crc32c_with_byte(std::uint32_t crc, std::uint8_t byte) noexcept {
  return __crc32cb(crc, byte);
}

Interruption interruption_of(const void* signal_context) noexcept {
  constexpr std::size_t link_register = 30;  // stale if the function has called another
  const auto& registers = static_cast<const ucontext_t*>(signal_context)->uc_mcontext;
  return {.instruction = reinterpret_cast<void*>(registers.pc),
          .stack_pointer = registers.sp,
          .return_address = registers.regs[link_register]};
}

bool is_after_call(const std::uint8_t* address) noexcept {
  std::uint32_t instruction = 0;
  std::memcpy(&instruction, address - sizeof instruction, sizeof instruction);
  return (instruction & 0xfc000000) == 0x94000000 || (instruction & 0xfffffc1f) == 0xd63f0000;  // bl, blr
}

}  // namespace lockstep
