// A step of a recurrent network, after its products: gates and state, and their gradients.
#pragma once

#include "lockstep/ops/check.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// from_x = x W' + b and from_h = h_before U' + c: [N, G H] of G gates, 3 of a GRU and 4 of an LSTM. before,
/// state: float32 [N, H]: a GRU's output or an LSTM's cell before and after the step; h: the output. gates:
/// [N, 4 H], what the backward reads: r, z, n and the third part of from_h, or i, f, g and o.
struct RecurrentStep {
  static constexpr const char* name = "recurrent_step";
  Tensor from_x, from_h, before, state, h, gates;

  static void operands(auto& op, auto&& each) {
    each(in("from_x", op.from_x), in("from_h", op.from_h), in("before", op.before, float32),
         out("the state", op.state, float32), out("h", op.h), out("the gates", op.gates));
  }
  void check() const {
    require_shape(name, "the gates", gates, {state.size(0), 4 * state.size(1)});
    for (const Tensor& other : {before, h}) require_shape(name, "before or h", other, state.shape());
    if (from_x.size(1) != 3 * state.size(1)) require_shape(name, "from_x", from_x, gates.shape());
    require_shape(name, "from_h", from_h, from_x.shape());
  }
};

/// dy, dh: the gradient of h from outside, and by way of the next step's from_h. dstate: that of the state,
/// which becomes that of `before`.
struct RecurrentStepBackward {
  static constexpr const char* name = "recurrent_step_backward";
  Tensor dy, dh, gates, before, state, dstate, dfrom_x, dfrom_h;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("dh", op.dh), in("the gates", op.gates), in("before", op.before, float32),
         in("the state", op.state, float32), in_out("dstate", op.dstate, float32), out("dfrom_x", op.dfrom_x),
         out("dfrom_h", op.dfrom_h));
  }
  void check() const {
    RecurrentStep{dfrom_x, dfrom_h, before, state, dy, gates}.check();
    for (const Tensor& other : {dh, dstate}) require_shape(name, "dh or dstate", other, state.shape());
  }
};

}  // namespace lockstep::ops
