#include "lockstep/nn/conv2d.h"

namespace lockstep::nn {
namespace {

/// [first, second / groups, kh, kw].
Shape weight_shape(const Module& owner, std::int64_t first, std::int64_t second, int groups,
                   const ops::HeightWidth& kernel) {
  if (groups < 1 || first % groups != 0 || second % groups != 0)
    throw UsageError("{}: {} groups do not divide {} and {} channels", owner.path(), groups, first, second);
  return {first, second / groups, kernel.height, kernel.width};
}

Init by_fan_in(const Shape& weight) { return fan_in_uniform(weight[1] * weight[2] * weight[3]); }

}  // namespace

ConvolutionParameters::ConvolutionParameters(Module& owner, const Shape& shape, std::int64_t out,
                                             bool with_bias)
    : weight(owner, "weight", shape, by_fan_in(shape)) {
  if (with_bias) bias.emplace(owner, "bias", Shape{out}, by_fan_in(shape));
}

Conv2d::Conv2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
               const ops::HeightWidth& kernel, const Conv2dOptions& options)
    : Layer(parent, name),
      ConvolutionParameters(*this, weight_shape(*this, out, in, options.groups, kernel), out, options.bias),
      geometry_{options.stride, options.padding, options.groups, options.dilation} {}

Var Conv2d::forward(const Var& x) {
  Tape& tape = x.tape();
  return conv2d(x, tape.weight(weight), bias ? tape.parameter(*bias) : Var{}, geometry_);
}

ConvTranspose2d::ConvTranspose2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
                                 const ops::HeightWidth& kernel, const ConvTranspose2dOptions& options)
    : Layer(parent, name),
      ConvolutionParameters(*this, weight_shape(*this, in, out, options.groups, kernel), out, options.bias),
      geometry_{options.stride, options.padding, options.groups, options.dilation},
      output_padding_(options.output_padding) {}

Var ConvTranspose2d::forward(const Var& x) {
  Tape& tape = x.tape();
  return conv_transpose2d(x, tape.weight(weight), bias ? tape.parameter(*bias) : Var{}, geometry_,
                          output_padding_);
}

}  // namespace lockstep::nn
