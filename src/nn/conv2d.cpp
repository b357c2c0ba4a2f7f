#include "lockstep/nn/conv2d.h"

namespace lockstep::nn {
namespace {

std::int64_t checked_group_width(const Module& module, std::int64_t in, std::int64_t out, int groups) {
  if (groups < 1 || in % groups != 0 || out % groups != 0)
    throw UsageError("{}: {} groups do not divide {} input and {} output channels", module.path(), groups, in,
                     out);
  return in / groups;
}

}  // namespace

Conv2d::Conv2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, int kernel,
               const Conv2dOptions& options)
    : Layer(parent, name),
      geometry_{options.stride, options.padding, options.groups},
      weight(*this, "weight", {out, checked_group_width(*this, in, out, options.groups), kernel, kernel},
             fan_in_uniform(in / options.groups * kernel * kernel)) {
  if (options.bias)
    bias.emplace(*this, "bias", Shape{out}, fan_in_uniform(in / options.groups * kernel * kernel));
}

Var Conv2d::forward(const Var& x) {
  Tape& tape = x.tape();
  return conv2d(x, tape.use_operand(weight), bias ? tape.use(*bias) : Var{}, geometry_);
}

}  // namespace lockstep::nn
