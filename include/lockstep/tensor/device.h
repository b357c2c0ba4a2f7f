// Where a tensor's memory is.
#pragma once

#include <string>

namespace lockstep {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  ///< which GPU; 0 for the CPU

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {Kind::cuda, index}; }
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:0".
std::string to_string(const Device& device);

}  // namespace lockstep
