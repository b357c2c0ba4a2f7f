// Element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { float32, bfloat16, float16, float64, int64, int32, uint8 };

/// Storage type of bf16: the upper half of a float32. Arithmetic happens in float32.
struct BFloat16 {
  std::uint16_t bits;
};

constexpr std::size_t bytes_of(DType type) {
  switch (type) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::uint8:
      return 1;
  }
  return 0;
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
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;

}  // namespace lockstep
