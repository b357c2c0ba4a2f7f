#include "lockstep/nn/layers.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::nn {

Linear::Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias)
    : Layer(parent, name), weight(*this, "weight", {out, in}, fan_in_uniform(in)) {
  if (with_bias) bias.emplace(*this, "bias", Shape{out}, fan_in_uniform(in));
}

void Linear::be_head() {
  weight.role = Param::Role::head;
  if (bias) bias->role = Param::Role::head;
}

namespace {

Var use_bias(Tape& tape, Linear& layer) { return layer.bias ? tape.parameter(*layer.bias) : Var{}; }

}  // namespace

Var Linear::forward(const Var& x) {
  Tape& tape = x.tape();
  return linear(x, tape.weight(weight), use_bias(tape, *this));
}

Var Linear::forward(const Var& x, ops::Activation activation) {
  Tape& tape = x.tape();
  return linear(x, tape.weight(weight), use_bias(tape, *this), activation);
}

Var feed_forward(const Var& x, Linear& in, ops::Activation activation, Linear& out) {
  Tape& tape = x.tape();
  const Var weight_in = tape.weight(in.weight), bias_in = use_bias(tape, in);
  return lockstep::feed_forward(x, weight_in, bias_in, activation, tape.weight(out.weight),
                                use_bias(tape, out));
}

}  // namespace lockstep::nn
