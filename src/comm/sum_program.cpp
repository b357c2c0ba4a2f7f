// Building and running lists of additions.
#include "comm/sum_program.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {
namespace {

template <class T>
void add(const T* __restrict left, const T* __restrict right, T* __restrict result, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) result[i] = left[i] + right[i];
}

template <class T>
void accumulate(const T* __restrict value, T* __restrict result, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) result[i] += value[i];
}

}  // namespace

SumProgram::SumProgram(ShardRange range, const std::function<int(ShardRange)>& source_of) {
  result_ = build(range, source_of, 0);
}

int SumProgram::build(ShardRange range, const std::function<int(ShardRange)>& source_of, int free_block) {
  const int source = source_of(range);
  if (source >= 0) return source;
  const int left_count = left_leaves(range.count);
  const int left = build({range.first, left_count}, source_of, free_block);
  const int right =
      build({range.first + left_count, range.count - left_count}, source_of, free_block + (left < 0 ? 1 : 0));
  scratch_blocks_ = std::max(scratch_blocks_, free_block + 1);
  additions_.push_back({left, right, ~free_block});
  return ~free_block;
}

void SumProgram::evaluate(DType dtype, std::int64_t count, std::span<const std::byte* const> sources,
                          std::span<std::byte* const> destinations, std::byte* scratch) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(dtype);
  if (dtype == DType::float32) {
    evaluate_as<float>(bytes, sources, destinations, scratch);
  } else {
    evaluate_as<double>(bytes, sources, destinations, scratch);
  }
}

template <class T>
void SumProgram::evaluate_as(std::size_t bytes, std::span<const std::byte* const> sources,
                             std::span<std::byte* const> destinations, std::byte* scratch) const {
  for (std::size_t first = 0; first < bytes; first += block_bytes) {
    const std::size_t block = std::min(block_bytes, bytes - first);
    const auto operand = [&](int number) -> const std::byte* {
      return number >= 0 ? sources[static_cast<std::size_t>(number)] + first
                         : scratch + static_cast<std::size_t>(~number) * block_bytes;
    };
    for (const Addition& addition : additions_) {
      const auto* left = reinterpret_cast<const T*>(operand(addition.left));
      const auto* right = reinterpret_cast<const T*>(operand(addition.right));
      auto* result = reinterpret_cast<T*>(scratch + static_cast<std::size_t>(~addition.result) * block_bytes);
      if (left == result) {
        accumulate(right, result, block / sizeof(T));
      } else if (right == result) {
        accumulate(left, result, block / sizeof(T));  // addition commutes
      } else {
        add(left, right, result, block / sizeof(T));
      }
    }
    const std::byte* result = operand(result_);
    for (std::byte* destination : destinations) {
      if (destination + first != result) std::memcpy(destination + first, result, block);
    }
  }
}

}  // namespace lockstep::comm
