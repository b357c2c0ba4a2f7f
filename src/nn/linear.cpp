#include "lockstep/nn/linear.h"

namespace lockstep::nn {

Linear::Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias)
    : Module(parent, name), weight(*this, "weight", {out, in}, fan_in_uniform(in)) {
  if (with_bias) bias.emplace(*this, "bias", Shape{out}, fan_in_uniform(in));
}

Var Linear::operator()(const Var& x) {
  Tape& tape = x.tape();
  return linear(x, tape.use(weight), bias ? tape.use(*bias) : Var{});
}

}  // namespace lockstep::nn
