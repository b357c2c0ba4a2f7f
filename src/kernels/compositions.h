// Operations composed of others, for devices without a faster function.
#pragma once

#include "lockstep/kernels/backend.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/strided_copy.h"

namespace lockstep::kernels {

/// A product with its bias, and an operation for each other step of its epilogue. parts: as in run_parts().
inline void matmul_by_steps(Backend& backend, const ops::MatMul& op, int parts = 1) {
  const Tensor& product = op.before ? op.before : op.y;
  backend.run_parts(
      ops::MatMul{op.a, op.b, op.transposed, product, op.accumulate, op.bias, {}, {}, {}, {}, op.few_rows},
      parts);
  if (op.slope_at)
    backend.run(ops::ActivateBackward{*op.activation, op.slope_at, op.y, op.y});
  else if (op.activation)
    backend.run(ops::Activate{*op.activation, product, op.y});
  if (op.dbias) backend.run_parts(ops::SumRows{op.a, op.dbias, op.accumulate}, parts);
}

inline void cross_entropy_in_place(Backend& backend, const ops::CrossEntropyInPlace& op) {
  if (op.classes > 0 && op.classes < op.logits.size(1)) {
    const ops::StridedView used = ops::StridedView(op.logits).narrowed(1, 0, op.classes);
    const Tensor logits = backend.empty({op.logits.size(0), op.classes}, op.logits.dtype());
    backend.run(ops::StridedCopy{used, ops::StridedView(logits)});
    cross_entropy_in_place(backend, {logits, op.targets, op.options, op.total});
    backend.fill(op.logits, 0);
    return backend.run(ops::StridedCopy{ops::StridedView(logits), used});
  }
  const Tensor log_sum_exp = backend.empty({op.logits.size(0)}), one = backend.empty({});
  backend.fill(one, 1);
  backend.run(ops::CrossEntropy{op.logits, op.targets, op.options, log_sum_exp, op.total});
  backend.run(ops::CrossEntropyBackward{op.logits, op.targets, op.options, log_sum_exp, one, op.logits});
}

/// body(the function's type).
template <class Body>
void with_function(ops::Activation kind, const Body& body) {
  switch (kind) {
    case ops::Activation::relu:
      return body(ops::Relu{});
    case ops::Activation::silu:
      return body(ops::Silu{});
    case ops::Activation::gelu_erf:
      return body(ops::GeluErf{});
    case ops::Activation::gelu_tanh:
      return body(ops::GeluTanh{});
  }
}

inline void activate(Backend& backend, const ops::Activate& op) {
  with_function(op.kind, [&]<class Function>(Function) {
    backend.run(ops::Map<ops::Value<Function>>{{}, {op.x}, op.y});
  });
}

inline void activate_backward(Backend& backend, const ops::ActivateBackward& op) {
  with_function(op.kind, [&]<class Function>(Function) {
    backend.run(ops::Map<ops::Slope<Function>>{{}, {op.x, op.dy}, op.dx});
  });
}

// adaptive_norm.cpp
void adaptive_group_norm(Backend& backend, const ops::AdaptiveGroupNorm& op);
void adaptive_group_norm_backward(Backend& backend, const ops::AdaptiveGroupNormBackward& op);
/// The norm and its dropout as two operations, which round each result. parts: as in run_parts().
void norm_then_dropout(Backend& backend, const ops::AdaptiveGroupNorm& op, int parts);
void dropout_then_norm_backward(Backend& backend, const ops::AdaptiveGroupNormBackward& op, int parts);

inline void enter_compositions(Backend& backend) {
  backend.enter<&adaptive_group_norm, &adaptive_group_norm_backward>();
  backend.enter<&cross_entropy_in_place>();
  backend.enter<&activate, &activate_backward>();
}

}  // namespace lockstep::kernels
