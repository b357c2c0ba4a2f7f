// Rotary positions (Su et al., "RoFormer", 2021): pairs of a head's elements are turned by angles that grow
// with the position.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// Which elements of a head are pair i.
enum class RotaryLayout : std::uint8_t {
  halves,  ///< i and i + width / 2 (GPT-NeoX, Llama in Hugging Face's form)
  pairs,   ///< 2 i and 2 i + 1 (RoFormer)
};

struct Turn {
  float cosine, sine;
};
/// By so many whole turns, which may be many: what is left of them is taken in float64.
LOCKSTEP_ON_ANY_DEVICE inline Turn turned_by(double turns) {
  const auto angle = static_cast<float>((turns - ::rint(turns)) * 6.283185307179586);
  return {::cosf(angle), ::sinf(angle)};
}
/// How many of them pair i makes from one position to the next: base^(-2 i / width) / (2 pi).
LOCKSTEP_ON_ANY_DEVICE inline double turns_per_position(double log2_base, std::int64_t i,
                                                        std::int64_t width) {
  return ::exp2(-log2_base * 2.0 * static_cast<double>(i) / static_cast<double>(width)) * 0.15915494309189535;
}

/// x, y: [batch, heads, time, width], width even; row t has position first_position + t. back: by the
/// negative angles, which is the gradient. y may be x.
struct Rotary {
  static constexpr const char* name = "rotary";
  Tensor x;
  RotaryLayout layout = RotaryLayout::halves;
  float base = 10000;
  std::int64_t first_position = 0;
  bool back = false;
  Tensor y;

  static void operands(auto& op, auto&& each) { each(in("x", op.x), out("y", op.y)); }
  void check() const;
};

}  // namespace lockstep::ops
