// Writing calls down, and what a GPU does by itself.
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "comm/wire.h"
#include "lockstep/tensor/half.h"
#include "simulated_gpus.h"

namespace lockstep::test {
namespace {

template <class T>
T rounded(T x, DType wire) {
  if constexpr (std::is_same_v<T, float>) {
    if (wire == DType::bfloat16) return from_bfloat16_bits(bfloat16_bits(x));
    if (wire == DType::float16) return from_float16_bits(float16_bits(x));
  }
  return x;
}

template <class T>
T value_at(const std::byte* first, std::int64_t element) {
  T value{};
  std::memcpy(&value, first + static_cast<std::size_t>(element) * sizeof(T), sizeof(T));
  return value;
}

template <class T>
T received_at(const comm::TreeAddition& addition, int slot, std::int64_t element) {
  const std::byte* const first = addition.slots + static_cast<std::size_t>(slot) * addition.slot_bytes;
  if (!comm::narrows(addition.wire, addition.dtype)) return value_at<T>(first, element);
  T value{};
  comm::widen(first + static_cast<std::size_t>(element) * 2, reinterpret_cast<std::byte*>(&value), 1,
              addition.wire);
  return value;
}

template <class T>
void add_as(const comm::TreeAddition& addition) {
  const comm::TreeStep* const steps = addition.program->on_device;
  const auto count_of_steps = static_cast<int>(addition.program->steps.size());
  for (std::int64_t i = 0; i < addition.count; ++i) {
    const auto value_of = [&](int source) {
      if (source < 0) return received_at<T>(addition, ~source, i);
      const std::byte* const plane =
          addition.planes + static_cast<std::size_t>(source) * addition.plane_bytes;
      return rounded(value_at<T>(plane, i), addition.wire);
    };
    const auto add = [](T left, T right) { return left + right; };
    const T sum = rounded(comm::sum_along_tree<comm::deepest_tree>(steps, count_of_steps, value_of, add),
                          addition.wire);
    const auto place = static_cast<std::size_t>(i);
    std::memcpy(addition.sum + place * sizeof(T), &sum, sizeof(T));
    if (addition.narrow_sum)
      comm::narrow(reinterpret_cast<const std::byte*>(&sum), addition.narrow_sum + place * 2, 1,
                   addition.wire);
  }
}

}  // namespace

void add_on_cpu(const comm::TreeAddition& addition) {
  if (addition.dtype == DType::float64) {
    add_as<double>(addition);
  } else {
    add_as<float>(addition);
  }
}

std::byte* WrittenCalls::scratch(std::size_t bytes) {
  memories_.push_back(std::make_unique<std::byte[]>(bytes));
  std::memset(memories_.back().get(), 0xab, bytes);
  return memories_.back().get();
}

void WrittenCalls::zero(std::byte* memory, std::size_t bytes) {
  alone([=] { std::memset(memory, 0, bytes); });
}

void WrittenCalls::add(const comm::TreeAddition& addition) {
  alone(
      [addition] { addition.dtype == DType::float64 ? add_as<double>(addition) : add_as<float>(addition); });
}

void WrittenCalls::narrow(const std::byte* values, std::byte* narrowed, std::int64_t count, DType wire) {
  alone([=] { comm::narrow(values, narrowed, count, wire); });
}

void WrittenCalls::widen(const std::byte* narrowed, std::byte* values, std::int64_t count, DType wire) {
  alone([=] { comm::widen(narrowed, values, count, wire); });
}

void WrittenCalls::begin_group() {
  if (in_group_) throw std::logic_error("a group within a group");
  in_group_ = true;
  steps.emplace_back();
}

void WrittenCalls::end_group() {
  in_group_ = false;
  const std::size_t calls = steps.back().group.size();
  if (calls > static_cast<std::size_t>(most_in_group))
    throw std::logic_error(fmt::format("{} calls in one group", calls));
}

void WrittenCalls::alone(std::function<void()> what) {
  if (in_group_) throw std::logic_error("work of the rank's own within a group");
  steps.push_back({std::move(what), {}});
}

void WrittenCalls::talk(const Talk& call) {
  if (!in_group_ && call.message()) throw std::logic_error("a message outside a group");
  if (!in_group_) steps.emplace_back();
  steps.back().group.push_back(call);
}

}  // namespace lockstep::test
