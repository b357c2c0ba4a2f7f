// Attention of several heads, and the rotary positions of its queries and keys.
//
// Each head's attention is softmax(q k' / sqrt(width)) v.
//
// q, k and v are columns of [batch, time, *] with the heads side by side, or of [batch, heads, time, *],
// where each matrix is one head's; y is a whole tensor of either form. The keys (k and v) may have another
// length than the queries, and fewer heads, which must divide q's: query head h then reads key head h /
// (heads / key_heads). With `causal`, which needs equal lengths, row t attends to rows 0 .. t.
//
// saved: float32 of the shape Backend::attention_saved_shape(), which the backward reads besides y. It holds
// each row's log-sum-exp, [batch, heads, queries]; the CPU saves the probabilities [batch, heads, queries,
// keys] of short rows instead.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// Where an operand's heads are: row t of head h of image b begins b * image + h * head + t * row elements
/// after the first.
struct HeadStrides {
  std::int64_t image = 0, head = 0, row = 0;
  bool operator==(const HeadStrides&) const = default;
};
/// width: of a head.
HeadStrides head_strides(const Columns& columns, std::int64_t width);
inline Columns all_columns(const Tensor& matrix) {
  return {matrix, 0, matrix.shape().rank() == 0 ? 0 : matrix.size(-1)};
}

/// The sizes of an attention.
struct AttentionSizes {
  std::int64_t batch, queries, keys, heads, key_heads, width;
  bool causal;
  int products;  ///< matrix products of [queries, keys, width] per head

  /// Query heads that read one key head.
  std::int64_t group() const { return heads / key_heads; }
  double flops() const;
  std::string text() const;
  bool operator==(const AttentionSizes&) const = default;
};

/// heads: the number of q's heads if they are side by side; unused if q is [batch, heads, time, *].
/// UsageError with the shapes if they do not fit.
AttentionSizes attention_sizes(const char* operation, const Columns& q, const Columns& k, const Columns& v,
                               int heads, bool causal, int products);

/// y = softmax(q k^T / sqrt(width)) v, of each head.
struct Attention {
  static constexpr const char* name = "attention";
  Columns q, k, v;
  int heads = 1;
  bool causal = false;
  Tensor y, saved;

  static void operands(auto& op, auto&& each) {
    each(in("q", op.q), in("k", op.k), in("v", op.v), out("y", op.y), out("saved", op.saved, float32));
  }
  AttentionSizes sizes() const;
  Cost cost() const;  ///< counts the columns only
};

/// dq, dk, dv are overwritten (other columns of their matrices are not touched).
struct AttentionBackward {
  static constexpr const char* name = "attention_backward";
  Tensor dy;
  Columns q, k, v;
  int heads = 1;
  bool causal = false;
  Tensor y, saved;
  Columns dq, dk, dv;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("q", op.q), in("k", op.k), in("v", op.v), in("y", op.y),
         in("saved", op.saved, float32), out("dq", op.dq), out("dk", op.dk), out("dv", op.dv));
  }
  AttentionSizes sizes() const;
  Cost cost() const;
};

// --- rotary positions (Su et al., "RoFormer", 2021): pairs of a head's elements are turned by angles that
// grow with the position

/// Which elements of a head are pair i.
enum class RotaryLayout : std::uint8_t {
  halves,  ///< i and i + width / 2 (GPT-NeoX, Llama in Hugging Face's form)
  pairs,   ///< 2 i and 2 i + 1 (RoFormer)
};

/// The rotation of a pair of elements: cosine and sine of its angle.
struct Rotation {
  float cosine, sine;
};
/// The rotation by a number of turns. It may be large, so the fraction of a turn is computed in float64.
LOCKSTEP_ON_ANY_DEVICE inline Rotation rotation_by(double turns) {
  const auto angle = static_cast<float>((turns - ::rint(turns)) * 6.283185307179586);
  return {::cosf(angle), ::sinf(angle)};
}
/// The turns of pair i from one position to the next: base^(-2 i / width) / (2 pi).
LOCKSTEP_ON_ANY_DEVICE inline double turns_per_position(double log2_base, std::int64_t i,
                                                        std::int64_t width) {
  return ::exp2(-log2_base * 2.0 * static_cast<double>(i) / static_cast<double>(width)) * 0.15915494309189535;
}

/// x, y: [batch, heads, time, width], width even; row t has position first_position + t. back: rotates by the
/// negative angles, which gives the gradient. y may be x.
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
