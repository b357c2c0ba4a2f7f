#include "comm/cast.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace lockstep::comm {
namespace {

constexpr std::int64_t block_elements = 1024;  // elements, converted on the stack

/// Converts block by block in ascending order. Each block is copied out before the result is written, so the
/// result may overwrite its source (which the conversions of tensors do not allow).
template <class From, class To, class Convert>
void convert(const std::byte* from, std::byte* to, std::int64_t count, const Convert& one) {
  std::array<From, block_elements> source;
  std::array<To, block_elements> result;
  for (std::int64_t first = 0; first < count; first += block_elements) {
    const auto part = static_cast<std::size_t>(std::min(block_elements, count - first));
    std::memcpy(source.data(), from + static_cast<std::size_t>(first) * sizeof(From), part * sizeof(From));
    for (std::size_t i = 0; i < part; ++i) result[i] = one(source[i]);
    std::memcpy(to + static_cast<std::size_t>(first) * sizeof(To), result.data(), part * sizeof(To));
  }
}

}  // namespace

void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype) {
  if (comm_dtype == DType::bfloat16) {
    convert<float, std::uint16_t>(values, cast, count, [](float x) { return bfloat16_bits(x); });
  } else {
    convert<float, std::uint16_t>(values, cast, count, [](float x) { return float16_bits(x); });
  }
}

void round_to(DType comm_dtype, std::byte* values, std::int64_t count) {
  if (comm_dtype == DType::bfloat16) {
    convert<float, float>(values, values, count,
                          [](float x) { return from_bfloat16_bits(bfloat16_bits(x)); });
  } else {
    convert<float, float>(values, values, count, [](float x) { return from_float16_bits(float16_bits(x)); });
  }
}

void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype) {
  if (comm_dtype == DType::bfloat16) {
    convert<std::uint16_t, float>(cast, values, count, [](std::uint16_t x) { return from_bfloat16_bits(x); });
  } else {
    convert<std::uint16_t, float>(cast, values, count, [](std::uint16_t x) { return from_float16_bits(x); });
  }
}

}  // namespace lockstep::comm
