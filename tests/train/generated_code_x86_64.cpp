#include "train/generated_code.h"

namespace lockstep::test {

std::span<const std::uint8_t> waiting_code() {
  static constexpr std::uint8_t code[] = {
      0x48, 0x83, 0xec, 0x28,              // sub rsp, 40: no frame pointer, as in oneDNN's code
      0xc7, 0x07, 0x01, 0x00, 0x00, 0x00,  // mov dword [rdi], 1
      0x8b, 0x06,                          // again: mov eax, [rsi]
      0x85, 0xc0,                          // test eax, eax
      0x74, 0xfa,                          // je again
      0x48, 0x83, 0xc4, 0x28,              // add rsp, 40
      0xc3,                                // ret
  };
  return code;
}

}  // namespace lockstep::test
