// Private to the module: element types as PyTorch's pickles name them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {

struct PytorchType {
  std::string_view storage;      ///< the class of a storage of such elements; empty: only untyped ones
  std::string_view dtype;        ///< the dtype of a view of an untyped storage
  std::optional<DType> element;  ///< none: bool and float8
  std::string_view name;         ///< as NumPy and PyTorch spell it
  std::size_t bytes;             ///< of an element
};

inline constexpr std::array<PytorchType, 15> pytorch_types{
    {{"torch.FloatStorage", "torch.float32", DType::float32, "float32", 4},
     {"torch.DoubleStorage", "torch.float64", DType::float64, "float64", 8},
     {"torch.HalfStorage", "torch.float16", DType::float16, "float16", 2},
     {"torch.BFloat16Storage", "torch.bfloat16", DType::bfloat16, "bfloat16", 2},
     {"torch.LongStorage", "torch.int64", DType::int64, "int64", 8},
     {"torch.IntStorage", "torch.int32", DType::int32, "int32", 4},
     {"torch.ShortStorage", "torch.int16", DType::int16, "int16", 2},
     {"torch.CharStorage", "torch.int8", DType::int8, "int8", 1},
     {"torch.ByteStorage", "torch.uint8", DType::uint8, "uint8", 1},
     {"torch.BoolStorage", "torch.bool", std::nullopt, "bool", 1},
     {"", "torch.uint16", DType::uint16, "uint16", 2},
     {"", "torch.uint32", DType::uint32, "uint32", 4},
     {"", "torch.uint64", DType::uint64, "uint64", 8},
     {"", "torch.float8_e4m3fn", std::nullopt, "float8_e4m3", 1},
     {"", "torch.float8_e5m2", std::nullopt, "float8_e5m2", 1}}};

}  // namespace lockstep::checkpoint
