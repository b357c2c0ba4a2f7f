// Folding numbers into a 64-bit signature.
#pragma once

#include <cstdint>

namespace lockstep::comm {

/// Depends on the order; the steps are those of the splitmix64 generator.
inline std::uint64_t mixed(std::uint64_t signature, std::uint64_t value) {
  std::uint64_t x = signature * 0x9e3779b97f4a7c15u + value + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace lockstep::comm
