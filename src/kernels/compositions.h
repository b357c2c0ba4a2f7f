// Operations that are made of others where a device has no faster way.
#pragma once

#include "lockstep/kernels/backend.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/loss.h"
#include "ops/adaptive_norm.h"
#include "ops/matmul.h"

namespace lockstep::kernels {

inline void linear_activation(Backend& backend, const ops::LinearActivation& op) {
  const Tensor& product = op.before ? op.before : op.y;
  backend.run(ops::Linear{op.x, op.weight, op.bias, product});
  backend.run(ops::Activate{op.kind, product, op.y});
}

inline void linear_backward_input_activation(Backend& backend, const ops::LinearBackwardInputActivation& op) {
  backend.run(ops::LinearBackwardInput{op.dy, op.weight, op.dx});
  backend.run(ops::ActivateBackward{op.kind, op.before, op.dx, op.dx});
}

inline void cross_entropy_in_place(Backend& backend, const ops::CrossEntropyInPlace& op) {
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

inline void enter_compositions(Backend& backend) {
  backend.enter<&adaptive_group_norm, &adaptive_group_norm_backward>();
  backend.enter<&cross_entropy_in_place>();
  backend.enter<&linear_activation, &linear_backward_input_activation, &activate, &activate_backward>();
}

}  // namespace lockstep::kernels
