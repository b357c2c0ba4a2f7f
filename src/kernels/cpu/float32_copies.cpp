#include "kernels/cpu/float32_copies.h"

#include <algorithm>

namespace lockstep::kernels {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::bfloat16; }

}  // namespace

const Float32Copies::Copy* Float32Copies::find(const Tensor& given) const {
  const auto end = copies_.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto found = std::find_if(copies_.begin(), end, [&](const Copy& copy) {
    return !copy.written && copy.given.shares_memory_with(given) && copy.given.shape() == given.shape();
  });
  return found == end ? nullptr : &*found;
}

Tensor Float32Copies::add(const Tensor& given, bool read, bool written) {
  Copy& copy = copies_.at(count_++);
  copy.given = given;
  copy.floats = floats_.empty(given.shape(), DType::float32, given.channel_block());
  copy.written = written;
  if (read) floats_.copy(given, copy.floats);
  return copy.floats;
}

Tensor Float32Copies::in(const Tensor& given) {
  if (!is_bf16(given)) return given;
  const Copy* const known = find(given);
  return known ? known->floats : add(given, true, false);
}

Tensor Float32Copies::operand(const Tensor& weight, const Tensor& activations) {
  if (!is_bf16(activations) || is_bf16(weight)) return in(weight);
  const Tensor rounded = floats_.empty(weight.shape(), DType::bfloat16);
  floats_.copy(weight, rounded);
  return in(rounded);
}

Tensor Float32Copies::out(const Tensor& given) { return is_bf16(given) ? add(given, false, true) : given; }

void Float32Copies::round() {
  for (std::size_t i = 0; i < count_; ++i) {
    if (copies_[i].written) floats_.copy(copies_[i].floats, copies_[i].given);
  }
}

}  // namespace lockstep::kernels
