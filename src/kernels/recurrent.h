// Elements of a step of a recurrent network, on any device. E: float, or a device's bf16, for which it has
// to_float() and store().
#pragma once

#include "lockstep/ops/math.h"
#include "ops/recurrent.h"

namespace lockstep::kernels {

template <int Gates, class E>
struct StepElement {
  std::int64_t width;
  const E *from_x, *from_h;
  const float* before;
  float* state;
  E *h, *gates;

  static StepElement of(const ops::RecurrentStep& op) {
    return {op.h.size(1),           op.from_x.data<E>(), op.from_h.data<E>(), op.before.data<float>(),
            op.state.data<float>(), op.h.data<E>(),      op.gates.data<E>()};
  }
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t at = row * width + k;
    const E *const x = from_x + row * Gates * width + k, *const u = from_h + row * Gates * width + k;
    E* const gate = gates + row * 4 * width + k;
    const auto sum = [&](int part) { return to_float(x[part * width]) + to_float(u[part * width]); };
    const float first = ops::sigmoid(sum(0)), second = ops::sigmoid(sum(1)), was = before[at];
    float third, fourth, after, output;
    if constexpr (Gates == 3) {
      fourth = to_float(u[2 * width]);
      third = ops::hyperbolic_tangent(to_float(x[2 * width]) + first * fourth);
      output = after = third + second * (was - third);
    } else {
      third = ops::hyperbolic_tangent(sum(2));
      fourth = ops::sigmoid(sum(3));
      after = second * was + first * third;
      output = fourth * ops::hyperbolic_tangent(after);
    }
    state[at] = after;
    store(h[at], output);
    store(gate[0], first);
    store(gate[width], second);
    store(gate[2 * width], third);
    store(gate[3 * width], fourth);
  }
};

template <int Gates, class E>
struct StepElementBackward {
  std::int64_t width;
  const E *dy, *dh, *gates;
  const float *before, *state;
  float* dstate;
  E *dfrom_x, *dfrom_h;

  static StepElementBackward of(const ops::RecurrentStepBackward& op) {
    return {op.dh.size(1),           op.dy.data<E>(),         op.dh.data<E>(),
            op.gates.data<E>(),      op.before.data<float>(), op.state.data<float>(),
            op.dstate.data<float>(), op.dfrom_x.data<E>(),    op.dfrom_h.data<E>()};
  }
  LOCKSTEP_ON_ANY_DEVICE void operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t at = row * width + k;
    const E* const gate = gates + row * 4 * width + k;
    const float first = to_float(gate[0]), second = to_float(gate[width]), third = to_float(gate[2 * width]),
                fourth = to_float(gate[3 * width]), dh_now = to_float(dy[at]) + to_float(dh[at]),
                dstate_now = dstate[at];
    const auto give = [&](int part, float to_x, float to_h) {
      store(dfrom_x[(row * Gates + part) * width + k], to_x);
      store(dfrom_h[(row * Gates + part) * width + k], to_h);
    };
    if constexpr (Gates == 3) {
      const float d = dh_now + dstate_now, dn = d * (1.0f - second) * (1.0f - third * third),
                  dr = dn * fourth * first * (1.0f - first),
                  dz = d * (before[at] - third) * second * (1.0f - second);
      give(0, dr, dr);
      give(1, dz, dz);
      give(2, dn, dn * first);
      dstate[at] = d * second;
    } else {
      const float squashed = ops::hyperbolic_tangent(state[at]),
                  d = dstate_now + dh_now * fourth * (1.0f - squashed * squashed),
                  di = d * third * first * (1.0f - first), df = d * before[at] * second * (1.0f - second),
                  dg = d * first * (1.0f - third * third),
                  dout = dh_now * squashed * fourth * (1.0f - fourth);
      give(0, di, di);
      give(1, df, df);
      give(2, dg, dg);
      give(3, dout, dout);
      dstate[at] = d * second;
    }
  }
};

/// compute(element), for operations of either number of gates. E: of the activations.
template <template <int, class> class Element, class E, class Op, class Compute>
void with_element(const Op& op, const Tensor& parts, const Compute& compute) {
  parts.size(1) == 3 * op.state.size(1) ? compute(Element<3, E>::of(op)) : compute(Element<4, E>::of(op));
}

}  // namespace lockstep::kernels
