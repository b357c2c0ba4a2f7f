// Element types of datasets, by the names PyTorch and NumPy use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::hdf5 {

/// Byte order is not part of it: reading converts. `other` is anything else (compounds, enumerations ...).
enum class ElementType : std::uint8_t {
  float64,
  float32,
  float16,   ///< IEEE half precision
  bfloat16,  ///< 1 sign, 8 exponent, 7 mantissa bits, bias 127; HDF5 sees a 16-bit float type and converts it
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  text,
  other,
};

/// Bytes per element; 0 for text and other.
std::size_t bytes_of(ElementType type);

/// "float32", "bfloat16" ... the names lockstep::to_string(DType) gives, so that
/// element_type_named(to_string(dtype)) converts.
std::string_view to_string(ElementType type);
/// Inverse of to_string; throws UsageError on an unknown name.
ElementType element_type_named(std::string_view name);

template <class T>
inline constexpr ElementType element_type_of = [] {
  static_assert(sizeof(T) == 0, "not an element type");
  return ElementType::other;
}();
template <>
inline constexpr ElementType element_type_of<double> = ElementType::float64;
template <>
inline constexpr ElementType element_type_of<float> = ElementType::float32;
template <>
inline constexpr ElementType element_type_of<std::int64_t> = ElementType::int64;
template <>
inline constexpr ElementType element_type_of<std::int32_t> = ElementType::int32;
template <>
inline constexpr ElementType element_type_of<std::int16_t> = ElementType::int16;
template <>
inline constexpr ElementType element_type_of<std::int8_t> = ElementType::int8;
template <>
inline constexpr ElementType element_type_of<std::uint64_t> = ElementType::uint64;
template <>
inline constexpr ElementType element_type_of<std::uint32_t> = ElementType::uint32;
template <>
inline constexpr ElementType element_type_of<std::uint16_t> = ElementType::uint16;
template <>
inline constexpr ElementType element_type_of<std::uint8_t> = ElementType::uint8;

}  // namespace lockstep::hdf5
