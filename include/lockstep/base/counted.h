// Numbers of things in texts for people: "1 tensor", "2 tensors".
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <string>
#include <string_view>

namespace lockstep {

/// The noun with an s unless there is exactly one.
std::string counted(std::integral auto count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace lockstep
