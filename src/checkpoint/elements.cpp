#include "checkpoint/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {
namespace {

inline void store(float value, float& to) { to = value; }
inline void store(float value, BFloat16& to) { to.bits = bfloat16_bits(value); }
inline void store(float value, Float16& to) { to.bits = float16_bits(value); }

/// Loads and stores by memcpy: elements in files need not be aligned.
template <class From, class To>
bool cast_each(const std::byte* in, std::byte* out, std::int64_t count) {
  bool all_fit = true;
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    To result;
    if constexpr (std::is_integral_v<To>) {
      all_fit &= std::in_range<To>(value);
      result = static_cast<To>(value);
    } else if constexpr (std::is_same_v<To, double>) {
      result = as_double(value);
    } else {
      store(static_cast<float>(as_double(value)), result);
      all_fit &= std::isfinite(as_double(result)) || !std::isfinite(as_double(value));
    }
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(To)), &result, sizeof(To));
  }
  return all_fit;
}

template <class T>
void transpose(const std::byte* in, std::int64_t rows, std::int64_t columns, std::byte* out) {
  constexpr std::int64_t tile = 32;  // source and result of a tile fit into the first cache
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += tile) {
      for (std::int64_t r = r0; r < std::min(rows, r0 + tile); ++r) {
        for (std::int64_t c = c0; c < std::min(columns, c0 + tile); ++c) {
          std::memcpy(out + (c * rows + r) * bytes, in + (r * columns + c) * bytes, sizeof(T));
        }
      }
    }
  }
}

std::int64_t count_not_finite(const Tensor& tensor) {
  const std::span bytes(static_cast<const std::byte*>(tensor.raw()), tensor.bytes());
  std::int64_t count = 0;
  with_element_type(tensor.dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i)
      count += std::isfinite(as_double(element_at<T>(bytes, i))) ? 0 : 1;
  });
  return count;
}

}  // namespace

bool cast_elements(DType from, const std::byte* in, DType to, std::byte* out, std::int64_t count) {
  return with_element_type(from, [&]<class From>() {
    return with_element_type(to, [&]<class To>() -> bool {
      if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
        throw UsageError("cannot cast floating-point elements to {}", to_string(to));
      } else {
        return cast_each<From, To>(in, out, count);
      }
    });
  });
}

void transpose_elements(const std::byte* in, std::int64_t rows, std::int64_t columns,
                        std::size_t element_bytes, std::byte* out) {
  switch (element_bytes) {
    case 1:
      return transpose<std::uint8_t>(in, rows, columns, out);
    case 2:
      return transpose<std::uint16_t>(in, rows, columns, out);
    case 4:
      return transpose<std::uint32_t>(in, rows, columns, out);
    case 8:
      return transpose<std::uint64_t>(in, rows, columns, out);
    default:
      throw UsageError("cannot transpose elements of {} bytes", element_bytes);
  }
}

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  // All exponent bits of a number that is not finite are ones.
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
    default:
      return true;
  }
}

std::string not_finite_in(std::span<const NamedTensor> tensors) {
  constexpr std::size_t max_names = 24;
  std::vector<std::string> found;
  for (const NamedTensor& tensor : tensors) {
    if (const std::int64_t count = count_not_finite(tensor.value); count > 0)
      found.push_back(fmt::format("{} ({} of {})", tensor.name, count, tensor.value.numel()));
  }
  return list_of(found, max_names);
}

}  // namespace lockstep::checkpoint
