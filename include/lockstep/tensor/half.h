// The two 16-bit float formats: rounding to their bits, and back. Loops over these vectorise.
#pragma once

#include <bit>
#include <cstdint>

#include "lockstep/tensor/dtype.h"

namespace lockstep {

/// Round to nearest, ties to even; a NaN stays one.
inline std::uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  return static_cast<std::uint16_t>((value != value ? quiet : rounded) >> 16);
}

inline float from_bfloat16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; what rounds beyond 65504 is infinite; a NaN stays one. Branch-free, so
/// that loops vectorise (after M. Dukhan's FP16 library): an anchor, 2^15 times the value's power of two
/// (2^-14 at least, where subnormals begin), is added to four times the value, so that the addition itself
/// rounds at the last place that float16 has.
inline std::uint16_t float16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // By way of a scale at which all that is too large for float16 is infinite.
  const float four_times = std::bit_cast<float>(magnitude) * 0x1p+112f * 0x1p-110f;
  const std::uint32_t exponent = magnitude & 0x7f800000u;
  constexpr std::uint32_t least = 0x38800000u;  // 2^-14
  const auto anchor = std::bit_cast<float>((exponent < least ? least : exponent) + (15u << 23));
  const auto sum = std::bit_cast<std::uint32_t>(anchor + four_times);
  const std::uint32_t rounded = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
  return static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : rounded));
}

inline float from_float16_bits(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  // The exponent's bias goes from 15 to 127 by way of a scale at which infinity and NaN stay such.
  const float normal = std::bit_cast<float>((magnitude << 13) + (224u << 23)) * 0x1p-112f;
  // A subnormal's bits are the last places of 0.5 + value.
  const float subnormal = std::bit_cast<float>(magnitude | (126u << 23)) - 0.5f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude < 0x400u ? subnormal : normal) | sign);
}

}  // namespace lockstep
