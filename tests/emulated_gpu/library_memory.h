// Elements in an emulated GPU's memory, as the libraries' arithmetic sees them: floats.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::emulated_gpu {

enum class Element { float32, bfloat16, int32, boolean };

inline std::size_t bytes_of(Element type) {
  return type == Element::bfloat16 ? 2u : type == Element::boolean ? 1u : 4u;
}

/// To the nearest, ties to even; a NaN stays one.
inline std::uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bfloat16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class Stored>
Stored stored_at(const void* memory, std::size_t index) {
  Stored value;
  std::memcpy(static_cast<void*>(&value), static_cast<const char*>(memory) + index * sizeof value,
              sizeof value);
  return value;
}

template <class Stored>
void store_at(void* memory, std::size_t index, Stored value) {
  std::memcpy(static_cast<char*>(memory) + index * sizeof value, &value, sizeof value);
}

inline float load(Element type, const void* memory, std::size_t index) {
  switch (type) {
    case Element::float32:
      break;
    case Element::bfloat16:
      return from_bfloat16_bits(stored_at<std::uint16_t>(memory, index));
    case Element::int32:
      return static_cast<float>(stored_at<std::int32_t>(memory, index));
    case Element::boolean:
      return stored_at<std::uint8_t>(memory, index) == 0 ? 0.0f : 1.0f;
  }
  return stored_at<float>(memory, index);
}

inline void store(Element type, void* memory, std::size_t index, float value) {
  switch (type) {
    case Element::float32:
      return store_at(memory, index, value);
    case Element::bfloat16:
      return store_at(memory, index, bfloat16_bits(value));
    case Element::int32:
      return store_at(memory, index, static_cast<std::int32_t>(value));
    case Element::boolean:
      return store_at(memory, index, static_cast<std::uint8_t>(value != 0.0f));
  }
}

/// As if it had been stored and read again.
inline float rounded(Element type, float value) {
  switch (type) {
    case Element::float32:
      break;
    case Element::bfloat16:
      return from_bfloat16_bits(bfloat16_bits(value));
    case Element::int32:
      return std::trunc(value);
    case Element::boolean:
      return value == 0.0f ? 0.0f : 1.0f;
  }
  return value;
}

/// The largest power of two, 256 at most, that the address is a multiple of.
inline std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// What a library leaves in its working memory: nothing that anybody should read, and nobody else's bytes.
inline void spoil(void* workspace, std::size_t bytes) {
  if (bytes > 0) std::memset(workspace, 0xff, bytes);
}

}  // namespace lockstep::emulated_gpu
