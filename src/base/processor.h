// Functions of the processor that C++ lacks. Each architecture has a file; CMake chooses it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// Flushes denormals to zero on the calling thread, results and operands. Every computing thread calls it
/// once: a GPT initialised at N(0, 1) runs more than ten times slower without.
void flush_denormals() noexcept;

/// memcpy to memory that is not read soon. If the processor can, it bypasses the caches and does not read
/// what it overwrites, which saves a third of the traffic. (The C library does so only from tens of MiB on.)
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// Adds eight bytes, or one, to `crc`, a CRC32C (Castagnoli). The caller inverts it before the first byte and
/// after the last.
std::uint32_t crc32c_with_word(std::uint32_t crc, std::uint64_t word) noexcept;
std::uint32_t crc32c_with_byte(std::uint32_t crc, std::uint8_t byte) noexcept;

/// Registers of a thread at a signal, from the context that the handler gets.
struct Interruption {
  void* instruction = nullptr;
  std::uintptr_t stack_pointer = 0;
  /// A return address that is in a register only; 0: all are on the stack.
  std::uintptr_t return_address = 0;
};
Interruption interruption_of(const void* signal_context) noexcept;
/// Whether the instruction before this address is a call. The bytes before it can be read.
bool is_after_call(const std::uint8_t* address) noexcept;
constexpr std::size_t max_call_bytes = 7;

}  // namespace lockstep
