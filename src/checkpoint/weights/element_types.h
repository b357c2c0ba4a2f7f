// Private to the module: the names of element types in other programs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {

struct ElementType {
  std::string_view safetensors;  ///< the dtype in the header of a .safetensors file
  std::string_view storage;      ///< PyTorch's class of a storage of such elements; empty: only untyped ones
  std::string_view dtype;        ///< PyTorch's dtype of a view of an untyped storage
  std::optional<DType> element;  ///< none: bool and float8
  std::string_view name;         ///< in NumPy and PyTorch
  std::size_t bytes;             ///< of an element
};

inline constexpr std::array<ElementType, 15> element_types{
    {{"F32", "torch.FloatStorage", "torch.float32", DType::float32, "float32", 4},
     {"F64", "torch.DoubleStorage", "torch.float64", DType::float64, "float64", 8},
     {"F16", "torch.HalfStorage", "torch.float16", DType::float16, "float16", 2},
     {"BF16", "torch.BFloat16Storage", "torch.bfloat16", DType::bfloat16, "bfloat16", 2},
     {"I64", "torch.LongStorage", "torch.int64", DType::int64, "int64", 8},
     {"I32", "torch.IntStorage", "torch.int32", DType::int32, "int32", 4},
     {"I16", "torch.ShortStorage", "torch.int16", DType::int16, "int16", 2},
     {"I8", "torch.CharStorage", "torch.int8", DType::int8, "int8", 1},
     {"U8", "torch.ByteStorage", "torch.uint8", DType::uint8, "uint8", 1},
     {"BOOL", "torch.BoolStorage", "torch.bool", std::nullopt, "bool", 1},
     {"U16", "", "torch.uint16", DType::uint16, "uint16", 2},
     {"U32", "", "torch.uint32", DType::uint32, "uint32", 4},
     {"U64", "", "torch.uint64", DType::uint64, "uint64", 8},
     {"F8_E4M3", "", "torch.float8_e4m3fn", std::nullopt, "float8_e4m3", 1},
     {"F8_E5M2", "", "torch.float8_e5m2", std::nullopt, "float8_e5m2", 1}}};

/// The type with this name in one of the fields above; null: unknown.
constexpr const ElementType* type_by(std::string_view ElementType::*field, std::string_view name) {
  for (const ElementType& type : element_types)
    if (!name.empty() && type.*field == name) return &type;
  return nullptr;
}
/// The row of a type.
constexpr const ElementType& type_of(DType dtype) {
  const ElementType* type = element_types.data();
  while (type->element != dtype) ++type;
  return *type;
}

/// The bytes of a tensor; none if the product of its extents other than 0 is 2^62 bytes or more, which no
/// machine could hold. (Below, no later product of them overflows.)
constexpr std::optional<std::uint64_t> bytes_of_shape(std::span<const std::int64_t> shape,
                                                      std::size_t element_bytes) {
  constexpr std::uint64_t max_bytes = std::uint64_t{1} << 62;
  std::uint64_t bytes = element_bytes;
  bool is_empty = false;
  for (const std::int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    if (extent == 0) continue;
    if (static_cast<std::uint64_t>(extent) > max_bytes / bytes) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(extent);
  }
  return is_empty ? 0 : bytes;
}

}  // namespace lockstep::checkpoint
