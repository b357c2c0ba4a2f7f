#include "comm/cpu_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace lockstep::comm {
namespace {

constexpr std::size_t block_bytes = 8192;  // of every operand, in one pass over the steps

// Operands and results are the same memory or do not overlap at all, which ivdep tells the compiler.

template <class T>
void add(const T* left, const T* right, T* result, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) result[i] = left[i] + right[i];
}

template <class T>
void add_to_both(const T* left, const T* right, T* first, T* second, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const T sum = left[i] + right[i];
    first[i] = sum;
    second[i] = sum;
  }
}

void copy(const std::byte* block, std::size_t bytes, std::span<std::byte* const> destinations,
          std::size_t first) {
  for (std::byte* destination : destinations) {
    if (destination + first != block) std::memcpy(destination + first, block, bytes);
  }
}

template <class T>
void add_blocks(const std::vector<SumStep>& steps, std::size_t bytes,
                std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                std::byte* scratch) {
  constexpr int max_waiting = 32;  // a tree over fewer than 2^31 shards is no deeper
  std::array<const T*, max_waiting> waiting;
  for (std::size_t first = 0; first < bytes; first += block_bytes) {
    const std::size_t block = std::min(block_bytes, bytes - first);
    const std::size_t count = block / sizeof(T);
    const auto destination = [&](std::size_t number) {
      return reinterpret_cast<T*>(destinations[number] + first);
    };
    std::size_t waits = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const T* value = reinterpret_cast<const T*>(sources[i] + first);
      for (int merges = steps[i].merges; merges > 0; --merges) {
        const T* const left = waiting[--waits];
        if (i + 1 == steps.size() && merges == 1) {
          if (destinations.size() == 1) {
            add(left, value, destination(0), count);
          } else {
            add_to_both(left, value, destination(0), destination(1), count);
          }
          value = destination(0);
        } else {
          T* const sum = reinterpret_cast<T*>(scratch + waits * block_bytes);
          add(left, value, sum, count);
          value = sum;
        }
      }
      waiting[waits++] = value;
    }
    const std::size_t written = steps.size() == 1 ? 0 : std::min<std::size_t>(destinations.size(), 2);
    copy(reinterpret_cast<const std::byte*>(waiting[0]), block, destinations.subspan(written), first);
  }
}

constexpr std::int64_t cast_elements = 1024;  // converted at once, on the stack

/// Converts block by block in ascending order. Each block is copied out before the result is written, so the
/// result may overwrite its source (which the conversions of tensors do not allow).
template <class From, class To, class Convert>
void convert(const std::byte* from, std::byte* to, std::int64_t count, const Convert& one) {
  std::array<From, cast_elements> source;
  std::array<To, cast_elements> result;
  for (std::int64_t first = 0; first < count; first += cast_elements) {
    const auto block = static_cast<std::size_t>(std::min(cast_elements, count - first));
    std::memcpy(source.data(), from + static_cast<std::size_t>(first) * sizeof(From), block * sizeof(From));
    for (std::size_t i = 0; i < block; ++i) result[i] = one(source[i]);
    std::memcpy(to + static_cast<std::size_t>(first) * sizeof(To), result.data(), block * sizeof(To));
  }
}

}  // namespace

std::size_t scratch_bytes(int depth) {
  return depth > 1 ? static_cast<std::size_t>(depth - 1) * block_bytes : 0;
}

void add_along_tree(const SumProgram& program, DType dtype, std::int64_t count,
                    std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                    std::byte* scratch) {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(dtype);
  if (dtype == DType::float32) {
    add_blocks<float>(program.steps, bytes, sources, destinations, scratch);
  } else {
    add_blocks<double>(program.steps, bytes, sources, destinations, scratch);
  }
}

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
