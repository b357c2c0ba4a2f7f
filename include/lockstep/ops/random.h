// Operations that draw random numbers: each is a function of the key and of the element's number, in logical
// row-major order.
#pragma once

#include "lockstep/base/random.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// y = x / (1 - p) where uniform(key, element) >= p, else 0. The backward is the same operation on dy.
/// 0 <= p < 1.
struct Dropout {
  static constexpr const char* name = "dropout";
  Tensor x;
  float p = 0;
  RandomKey key;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x).blocked(), out("y", op.y).blocked()); }
  void check() const;
};

/// What Draw draws. u: the element's 32 bits of Random, divided by 2^32.
enum class Distribution : std::uint8_t {
  normal,    ///< float32: Random::normal
  integer,   ///< int64: Random::below(parameter), which is an integer from 1 to 2^32 - 1
  coin,      ///< uint8: 1 where u >= parameter, else 0
  weighted,  ///< int64: the first position in `sums` above u * the last of them
};

/// Fills y with random numbers.
struct Draw {
  static constexpr const char* name = "draw";
  Distribution distribution = Distribution::normal;
  RandomKey key{};
  double parameter = 0;
  Tensor sums{};  ///< of weighted: float64 [n], n > 0, not decreasing
  Tensor y{};

  static void operands(auto& op, auto&& each) {
    each(in("the sums", op.sums, float64).shared().optional(), out("y", op.y, anything));
  }
  void check() const;
};

}  // namespace lockstep::ops
