// Element types of tensors and of arrays in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Those from int16 on occur in files only: no operation takes them.
enum class DType : std::uint8_t {
  float32,
  bfloat16,  ///< 1 sign, 8 exponent, 7 mantissa bits, bias 127
  float16,   ///< IEEE half precision
  float64,
  int64,
  int32,
  uint8,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
};

/// Storage type of bf16: the upper half of a float32. Arithmetic happens in float32.
struct BFloat16 {
  std::uint16_t bits;
};

/// Storage type of IEEE half precision, likewise.
struct Float16 {
  std::uint16_t bits;
};

constexpr std::size_t bytes_of(DType type) {
  switch (type) {
    case DType::float64:
    case DType::int64:
    case DType::uint64:
      return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::uint8:
    case DType::int8:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType type) {
  return type == DType::float64 || type == DType::float32 || type == DType::float16 ||
         type == DType::bfloat16;
}

/// "float32", "bfloat16" ... as PyTorch and NumPy spell them.
std::string_view to_string(DType type);
/// Inverse of to_string; throws UsageError on an unknown name.
DType dtype_named(std::string_view name);

template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "not an element type");
  return DType::uint8;
}();
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<Float16> = DType::float16;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;
template <>
inline constexpr DType dtype_of<std::int16_t> = DType::int16;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::int8;
template <>
inline constexpr DType dtype_of<std::uint64_t> = DType::uint64;
template <>
inline constexpr DType dtype_of<std::uint32_t> = DType::uint32;
template <>
inline constexpr DType dtype_of<std::uint16_t> = DType::uint16;

}  // namespace lockstep
