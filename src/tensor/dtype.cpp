#include "lockstep/tensor/dtype.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/tensor/device.h"

namespace lockstep {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::float64:
      return "float64";
    case DType::int64:
      return "int64";
    case DType::int32:
      return "int32";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

DType dtype_named(std::string_view name) {
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int64,
                           DType::int32, DType::uint8}) {
    if (to_string(type) == name) return type;
  }
  throw UsageError("unknown element type '{}'", name);
}

std::string to_string(const Device& device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

}  // namespace lockstep
