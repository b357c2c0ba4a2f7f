// Element types of tensors and of arrays in files.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Types from int16 on occur in files only: no operation takes them.
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
  std::uint16_t bits;  ///< sign, 8 bits of exponent, 7 of mantissa
};

/// Storage type of IEEE half precision. Arithmetic happens in float32.
struct Float16 {
  std::uint16_t bits;  ///< sign, 5 bits of exponent, 10 of mantissa
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

/// Round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  return static_cast<std::uint16_t>((value != value ? quiet : rounded) >> 16);
}

inline float from_bfloat16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; values that round beyond 65504 become infinite; NaN stays NaN.
/// Branch-free, so that loops vectorise (after M. Dukhan's FP16 library): an anchor, 2^15 times the value's
/// power of two (2^-14 at least, where subnormals begin), is added to four times the value, so that the
/// addition itself rounds at the last place that float16 has.
inline std::uint16_t float16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // The first factor makes values that are too large for float16 infinite.
  const float four_times = std::bit_cast<float>(magnitude) * 0x1p+112f * 0x1p-110f;
  const std::uint32_t exponent = magnitude & 0x7f800000u;
  constexpr std::uint32_t min_normal = 0x38800000u;  // 2^-14
  const auto anchor = std::bit_cast<float>((exponent < min_normal ? min_normal : exponent) + (15u << 23));
  const auto sum = std::bit_cast<std::uint32_t>(anchor + four_times);
  const std::uint32_t rounded = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
  return static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : rounded));
}

inline float from_float16_bits(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  // Changes the exponent's bias from 15 to 127, by a scale that preserves infinity and NaN.
  const float normal = std::bit_cast<float>((magnitude << 13) + (224u << 23)) * 0x1p-112f;
  // The bits of a subnormal are the last bits of 0.5 + value.
  const float subnormal = std::bit_cast<float>(magnitude | (126u << 23)) - 0.5f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude < 0x400u ? subnormal : normal) | sign);
}

}  // namespace lockstep
