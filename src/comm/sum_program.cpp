// Building and running lists of additions.
#include "comm/sum_program.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm {
namespace {

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
    const std::size_t count = block / sizeof(T);
    const auto operand = [&](int number) {
      return reinterpret_cast<const T*>(number >= 0
                                            ? sources[static_cast<std::size_t>(number)] + first
                                            : scratch + static_cast<std::size_t>(~number) * block_bytes);
    };
    const auto destination = [&](std::size_t number) {
      return reinterpret_cast<T*>(destinations[number] + first);
    };
    if (additions_.empty()) {
      copy(reinterpret_cast<const std::byte*>(operand(result_)), block, destinations, first);
      continue;
    }
    for (std::size_t i = 0; i + 1 < additions_.size(); ++i) {
      const Addition& addition = additions_[i];
      add(operand(addition.left), operand(addition.right),
          reinterpret_cast<T*>(scratch + static_cast<std::size_t>(~addition.result) * block_bytes), count);
    }
    const Addition& last = additions_.back();
    if (destinations.size() == 1) {
      add(operand(last.left), operand(last.right), destination(0), count);
    } else {
      add_to_both(operand(last.left), operand(last.right), destination(0), destination(1), count);
      copy(destinations[0] + first, block, destinations.subspan(2), first);
    }
  }
}

}  // namespace lockstep::comm
