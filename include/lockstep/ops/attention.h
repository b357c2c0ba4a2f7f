// Attention of several heads, and the rotary positions of its queries and keys.
//
// Each head's attention is softmax(q k' / sqrt(width)) v.
//
// q, k and v are columns of [batch, time, *] with the heads side by side, or of [batch, heads, time, *],
// where each matrix is one head's; y is a whole tensor of either form. The keys (k and v) may have another
// length than the queries, and fewer heads, which must divide q's: query head h then reads key head h /
// (heads / key_heads). With `causal` the queries are the last of the keys' rows, and each attends to its own
// row and to those before it. Its position counts from the beginning of its document; with `positions`, int64
// [batch, queries], a row attends to rows of its own document only: to position + 1 of them. In a row of the
// batch documents follow each other: a position is 0 or that of the row before plus 1.
//
// bias: float32 [batch, heads, queries, keys], or extent 1 in place of any of the first three, added to the
// scaled scores. Its large negative numbers hide keys; they must be finite.
//
// saved: float32 of the shape Backend::attention_saved_shape(), which the backward reads besides y; absent if
// there is no backward, which suits few queries and many keys. It holds
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

/// The strides of the bias of an attention: 0 along extents of 1.
inline HeadStrides bias_strides(const Tensor& bias) {
  if (!bias) return {};
  const std::int64_t rows = bias.size(2), keys = bias.size(3);
  return {bias.size(0) == 1 ? 0 : bias.size(1) * rows * keys, bias.size(1) == 1 ? 0 : rows * keys,
          rows == 1 ? 0 : keys};
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

/// heads: the number of q's heads if they are side by side; unused if q is [batch, heads, time, *]. keys: the
/// rows of k and v that count; 0: all. UsageError with the shapes if they do not fit.
AttentionSizes attention_sizes(const char* operation, const Columns& q, const Columns& k, const Columns& v,
                               int heads, bool causal, int products, std::int64_t keys = 0);

/// y = softmax(q k^T / sqrt(width)) v, of each head.
struct Attention {
  static constexpr const char* name = "attention";
  Columns q, k, v;
  int heads = 1;
  bool causal = false;
  Tensor y, saved;
  Tensor positions = {};
  std::int64_t keys = 0;  ///< the first rows of k and v, which count; 0: all
  Tensor bias = {};

  static void operands(auto& op, auto&& each) {
    each(in("q", op.q), in("k", op.k), in("v", op.v), out("y", op.y),
         out("saved", op.saved, float32).optional(), in("positions", op.positions, int64).optional(),
         in("bias", op.bias, float32).optional());
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
  Tensor positions = {}, bias = {};
  Tensor dbias = {};  ///< float32 [batch, heads, queries, keys]: the gradient of each biased score

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("q", op.q), in("k", op.k), in("v", op.v), in("y", op.y),
         in("saved", op.saved, float32), out("dq", op.dq), out("dk", op.dk), out("dv", op.dv),
         in("positions", op.positions, int64).optional(), in("bias", op.bias, float32).optional(),
         out("dbias", op.dbias, float32).optional());
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
/// Slower rotations for texts longer than those of the first training (Llama 3.1: rope_type llama3 of
/// transformers/modeling_rope_utils.py): pairs that turn fewer than `low` times in `context` positions are
/// `factor` times slower, those that turn more than `high` times stay, and between the two is a mean of both.
struct RotaryScaling {
  float factor = 1;         ///< 1: none
  float low = 1, high = 4;  ///< both infinite: all pairs are slower
  float context = 8192;

  /// The turns per position of a pair that without scaling has `turns`.
  LOCKSTEP_ON_ANY_DEVICE double apply(double turns) const {
    const double times = turns * context;
    if (factor == 1.0f || times >= high) return turns;
    const double kept = times <= low ? 0.0 : (times - low) / (static_cast<double>(high) - low);
    return kept * turns + (1.0 - kept) * turns / factor;
  }
  bool operator==(const RotaryScaling&) const = default;
};

/// The turns of pair i from one position to the next: base^(-2 i / width) / (2 pi), scaled.
LOCKSTEP_ON_ANY_DEVICE inline double turns_per_position(double log2_base, const RotaryScaling& scaling,
                                                        std::int64_t i, std::int64_t width) {
  return scaling.apply(::exp2(-log2_base * 2.0 * static_cast<double>(i) / static_cast<double>(width)) *
                       0.15915494309189535);
}

/// x, y: [batch, heads, time, width], or with `time_first` [batch, time, heads, width]; width even. Row t has
/// position first_position + t, or positions[batch, t] of int64 [batch, time]. back: rotates by the negative
/// angles, which gives the gradient. y may be x.
struct Rotary {
  static constexpr const char* name = "rotary";
  Tensor x;
  RotaryLayout layout = RotaryLayout::halves;
  float base = 10000;
  std::int64_t first_position = 0;
  bool back = false;
  Tensor y;
  RotaryScaling scaling = {};
  bool time_first = false;
  Tensor positions = {};

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), out("y", op.y), in("positions", op.positions, int64).optional());
  }
  void check() const;
  std::int64_t heads() const { return x.size(time_first ? 2 : 1); }  ///< of x
  std::int64_t time() const { return x.size(time_first ? 1 : 2); }   ///< rows of a head
};

}  // namespace lockstep::ops
