#include "lockstep/nn/layers.h"

#include <array>
#include <cmath>
#include <ranges>

#include "lockstep/ops/elementwise.h"

namespace lockstep::nn {

Linear::Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias)
    : Layer(parent, name), weight(*this, "weight", {out, in}, fan_in_uniform(in)) {
  if (with_bias) bias.emplace(*this, "bias", Shape{out}, fan_in_uniform(in));
}

void Linear::mark_as_head() {
  weight.role = Param::Role::head;
  if (bias) bias->role = Param::Role::head;
}

namespace {

Var use_bias(Tape& tape, Linear& layer) { return layer.bias ? tape.bias(*layer.bias) : Var{}; }

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

namespace {

/// [first, second / groups, kernel...].
Shape weight_shape(const Module& owner, int dims, std::int64_t first, std::int64_t second, int groups,
                   const ops::Directions& kernel) {
  if (groups < 1 || first % groups != 0 || second % groups != 0)
    throw UsageError("{}: {} groups do not divide {} and {} channels", owner.path(), groups, first, second);
  Shape shape{first, second / groups};
  for (const int extent :
       std::array{kernel.depth, kernel.height, kernel.width} | std::views::drop(3 - dims)) {
    if (extent < 1)
      throw UsageError("{}: a kernel of {} directions lacks an extent, or it is below 1", owner.path(), dims);
    shape.append(extent);
  }
  return shape;
}

Init by_fan_in(const Shape& weight) { return fan_in_uniform(weight.with(0, 1).numel()); }

}  // namespace

ConvolutionParameters::ConvolutionParameters(Module& owner, const Shape& shape, std::int64_t out,
                                             bool with_bias)
    : weight(owner, "weight", shape, by_fan_in(shape)) {
  if (with_bias) bias.emplace(owner, "bias", Shape{out}, by_fan_in(shape));
}

ConvNd::ConvNd(Module& parent, std::string_view name, int dims, std::int64_t in, std::int64_t out,
               const ops::Directions& kernel, const Conv2dOptions& options)
    : Layer(parent, name),
      ConvolutionParameters(*this, weight_shape(*this, dims, out, in, options.groups, kernel), out,
                            options.bias),
      dims_(dims),
      geometry_{options.stride, options.padding, options.groups, options.dilation} {}

Var ConvNd::forward(const Var& x, const Var& residual) {
  Tape& tape = x.tape();
  const Var b = bias ? tape.parameter(*bias) : Var{};
  if (dims_ == 1) return conv1d(x, tape.weight(weight), b, geometry_);
  return (dims_ == 2 ? conv2d : conv3d)(x, tape.convolution_weight(weight), b, geometry_, residual);
}

ConvTransposeNd::ConvTransposeNd(Module& parent, std::string_view name, int dims, std::int64_t in,
                                 std::int64_t out, const ops::Directions& kernel,
                                 const ConvTranspose2dOptions& options)
    : Layer(parent, name),
      ConvolutionParameters(*this, weight_shape(*this, dims, in, out, options.groups, kernel), out,
                            options.bias),
      dims_(dims),
      geometry_{options.stride, options.padding, options.groups, options.dilation},
      output_padding_(options.output_padding) {}

Var ConvTransposeNd::forward(const Var& x) {
  Tape& tape = x.tape();
  return (dims_ == 2 ? conv_transpose2d : conv_transpose3d)(
      x, tape.convolution_weight(weight), bias ? tape.parameter(*bias) : Var{}, geometry_, output_padding_);
}

namespace {

/// For a weight [3 C, C].
Init glorot_uniform(std::int64_t channels) {
  return Init::uniform(channels > 0 ? std::sqrt(1.5f / static_cast<float>(channels)) : 0);
}

}  // namespace

MultiheadAttention::MultiheadAttention(Module& parent, std::string_view name, std::int64_t channels,
                                       int heads, bool with_bias)
    : Layer(parent, name),
      heads_(heads),
      in_proj_weight(*this, "in_proj_weight", {3 * channels, channels}, glorot_uniform(channels)),
      out_proj(*this, "out_proj", channels, channels, with_bias) {
  if (heads < 1 || channels % heads != 0)
    throw UsageError("{}: {} heads do not divide {} channels", path(), heads, channels);
  if (!with_bias) return;
  in_proj_bias.emplace(*this, "in_proj_bias", Shape{3 * channels}, Init::constant(0));
  initialize(*out_proj.bias, Init::constant(0), seed());
}

Var MultiheadAttention::forward(const Var& x, bool causal, const AttentionBias& bias) {
  Tape& tape = x.tape();
  const Var qkv = linear(x, tape.weight(in_proj_weight), in_proj_bias ? tape.bias(*in_proj_bias) : Var{});
  return out_proj(attention(qkv, heads_, causal, HeadOrder::thirds, {}, bias));
}

Var MultiheadAttention::forward(const Var& query, const Var& key, const Var& value, bool causal) {
  Tape& tape = query.tape();
  const auto [weight_q, weight_k, weight_v] = chunk<3>(tape.weight(in_proj_weight), 0);
  std::array<Var, 3> bias;
  if (in_proj_bias) bias = chunk<3>(tape.parameter(*in_proj_bias), 0);
  return out_proj(attention(linear(query, weight_q, bias[0]), linear(key, weight_k, bias[1]),
                            linear(value, weight_v, bias[2]), heads_, causal));
}

}  // namespace lockstep::nn
