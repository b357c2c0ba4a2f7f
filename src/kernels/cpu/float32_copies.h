// Operands in bf16 as a float32 operation takes them.
#pragma once

#include <array>
#include <cstddef>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// The float32 stand-ins of one operation's bf16 tensors; what is not bf16 stands for itself.
class Float32Copies {
 public:
  explicit Float32Copies(Backend& floats) : floats_(floats) {}
  Float32Copies(const Float32Copies&) = delete;
  Float32Copies& operator=(const Float32Copies&) = delete;

  /// To read. The same memory is copied once.
  Tensor in(const Tensor& given);
  /// A weight, rounded to the activations' type first.
  Tensor operand(const Tensor& weight, const Tensor& activations);
  /// To write all of.
  Tensor out(const Tensor& given);
  /// Rounds what was written.
  void round();

 private:
  struct Copy {
    Tensor given, floats;
    bool written = false;
  };
  const Copy* find(const Tensor& given) const;
  Tensor add(const Tensor& given, bool read, bool written);

  Backend& floats_;
  std::array<Copy, 8> copies_;
  std::size_t count_ = 0;
};

}  // namespace lockstep::kernels
