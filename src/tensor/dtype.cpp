#include "lockstep/tensor/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/tensor/device.h"

namespace lockstep {

namespace {

/// In the order of the enumeration.
constexpr std::array<std::string_view, 12> dtype_names{"float32", "bfloat16", "float16", "float64",
                                                       "int64",   "int32",    "uint8",   "int16",
                                                       "int8",    "uint64",   "uint32",  "uint16"};

}  // namespace

std::string_view to_string(DType type) { return dtype_names.at(static_cast<std::size_t>(type)); }

DType dtype_named(std::string_view name) {
  const auto found = std::ranges::find(dtype_names, name);
  if (found == dtype_names.end()) throw UsageError("unknown element type '{}'", name);
  return static_cast<DType>(found - dtype_names.begin());
}

std::string to_string(const Device& device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

}  // namespace lockstep
