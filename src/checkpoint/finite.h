// Private to the room: numbers that are not finite: whether there are any, and weights that hold them, by
// name.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "checkpoint/elements.h"
#include "lockstep/checkpoint/contents.h"

namespace lockstep::checkpoint {

/// Are all elements whose bits are these finite? True of integers. As fast as memory in a cache.
inline bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  // The exponent of what is not finite has no bit that is zero.
  const auto none_has = [&]<class Word>(Word exponent) {
    Word found = 0;
    for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i)
      found |= static_cast<Word>((element_at<Word>(bytes, i) & exponent) == exponent);
    return found == 0;
  };
  switch (dtype) {
    case DType::float32:
      return none_has(std::uint32_t{0x7f80'0000});
    case DType::bfloat16:
      return none_has(std::uint16_t{0x7f80});
    case DType::float16:
      return none_has(std::uint16_t{0x7c00});
    case DType::float64:
      return none_has(std::uint64_t{0x7ff0'0000'0000'0000});
    case DType::int64:
    case DType::int32:
    case DType::uint8:
      break;
  }
  return true;
}

inline std::int64_t count_not_finite(const Tensor& tensor) {
  const std::span bytes(static_cast<const std::byte*>(tensor.raw()), tensor.bytes());
  std::int64_t count = 0;
  with_element_type(tensor.dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i)
      count += std::isfinite(as_double(element_at<T>(bytes, i))) ? 0 : 1;
  });
  return count;
}

/// "fc.weight (2 of 80), fc.bias (1 of 10)", two dozen at most; empty if all numbers are finite.
inline std::string not_finite_in(std::span<const NamedTensor> tensors) {
  constexpr int most_names = 24;
  std::string text;
  int found = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::int64_t count = count_not_finite(tensor.value);
    if (count == 0 || ++found > most_names) continue;
    text +=
        fmt::format("{}{} ({} of {})", text.empty() ? "" : ", ", tensor.name, count, tensor.value.numel());
  }
  return found > most_names ? fmt::format("{} and {} more", text, found - most_names) : text;
}

}  // namespace lockstep::checkpoint
