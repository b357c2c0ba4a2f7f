// Attention of several heads. q, k, v: columns of [batch, time, *] matrices, `heads` heads of width channels
// / heads side by side; scale 1 / sqrt(width). y: [batch, time, channels]. saved: what the backward reads
// besides y, float32, of the shape Backend::attention_saved_shape(). It holds each row's log-sum-exp, [batch,
// heads, time]; the CPU saves the probabilities [batch, heads, time, time] of short rows instead.
#pragma once

#include "lockstep/ops/operation.h"

namespace lockstep::ops {

struct AttentionSizes {
  std::int64_t batch, time, heads, width;
  bool causal;
  int products;  ///< of [time, time, width] for each head

  double flops() const;
  std::string text() const;
};

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
  Cost cost() const;  ///< of the columns alone
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

}  // namespace lockstep::ops
