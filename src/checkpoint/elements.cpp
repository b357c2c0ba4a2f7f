#include "checkpoint/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/half.h"

namespace lockstep::checkpoint {
namespace {

using hdf5::ElementType;

/// Loads and stores by memcpy: elements in files need not be aligned.
template <class From, class To, class Convert>
void convert_each(const std::byte* in, std::byte* out, std::int64_t count, const Convert& convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    const To converted = convert(value);
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(To)), &converted, sizeof(To));
  }
}

template <class From>
bool cast_from(const std::byte* in, DType to, std::byte* out, std::int64_t count) {
  constexpr bool is_integer = std::is_integral_v<From>;
  bool all_fit = true;
  const auto as_float = [&](From value) {
    const auto narrow = static_cast<float>(as_double(value));
    all_fit &= std::isfinite(narrow) || !std::isfinite(as_double(value));
    return narrow;
  };
  switch (to) {
    case DType::float64:
      convert_each<From, double>(in, out, count, [](From value) { return as_double(value); });
      return true;
    case DType::float32:
      convert_each<From, float>(in, out, count, as_float);
      return all_fit;
    case DType::bfloat16:
      convert_each<From, BFloat16>(in, out, count, [&](From value) {
        const BFloat16 narrow{bfloat16_bits(as_float(value))};
        all_fit &= std::isfinite(as_double(narrow)) || !std::isfinite(as_double(value));
        return narrow;
      });
      return all_fit;
    case DType::float16:
      convert_each<From, Float16>(in, out, count, [&](From value) {
        const Float16 narrow{float16_bits(as_float(value))};
        all_fit &= std::isfinite(as_double(narrow)) || !std::isfinite(as_double(value));
        return narrow;
      });
      return all_fit;
    case DType::int64:
    case DType::int32:
    case DType::uint8:
      break;
  }
  if constexpr (is_integer) {
    const auto wrap_free = [&]<class To>(From value) {
      all_fit &= std::in_range<To>(value);
      return static_cast<To>(value);
    };
    const auto run = [&]<class To>() {
      convert_each<From, To>(in, out, count,
                             [&](From value) { return wrap_free.template operator()<To>(value); });
    };
    if (to == DType::int64) run.template operator()<std::int64_t>();
    if (to == DType::int32) run.template operator()<std::int32_t>();
    if (to == DType::uint8) run.template operator()<std::uint8_t>();
    return all_fit;
  }
  throw UsageError("floating-point elements cannot become {}", to_string(to));
}

template <class T>
void transpose(const std::byte* in, std::int64_t rows, std::int64_t columns, std::byte* out) {
  constexpr std::int64_t tile = 32;  // in and out of a tile stay in the first cache
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

bool cast_elements(ElementType from, const std::byte* in, DType to, std::byte* out, std::int64_t count) {
  switch (from) {
    case ElementType::float64:
      return cast_from<double>(in, to, out, count);
    case ElementType::float32:
      return cast_from<float>(in, to, out, count);
    case ElementType::float16:
      return cast_from<Float16>(in, to, out, count);
    case ElementType::bfloat16:
      return cast_from<BFloat16>(in, to, out, count);
    case ElementType::int64:
      return cast_from<std::int64_t>(in, to, out, count);
    case ElementType::int32:
      return cast_from<std::int32_t>(in, to, out, count);
    case ElementType::int16:
      return cast_from<std::int16_t>(in, to, out, count);
    case ElementType::int8:
      return cast_from<std::int8_t>(in, to, out, count);
    case ElementType::uint64:
      return cast_from<std::uint64_t>(in, to, out, count);
    case ElementType::uint32:
      return cast_from<std::uint32_t>(in, to, out, count);
    case ElementType::uint16:
      return cast_from<std::uint16_t>(in, to, out, count);
    case ElementType::uint8:
      return cast_from<std::uint8_t>(in, to, out, count);
    case ElementType::text:
    case ElementType::other:
      break;
  }
  throw UsageError("elements of type {} are no numbers", hdf5::to_string(from));
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
      throw UsageError("elements of {} bytes cannot be transposed", element_bytes);
  }
}

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
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

std::string not_finite_in(std::span<const NamedTensor> tensors) {
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
