// Conv2d and ConvTranspose2d: the convolution of images, and its transpose, which makes them larger.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// What both are made of: weight and bias, both U(+-1 / sqrt(fan_in)) at first, where fan_in is the product
/// of the weight's extents but the first.
struct ConvolutionParameters {
  ConvolutionParameters(Module& owner, const Shape& weight_shape, std::int64_t out, bool with_bias);

  Parameter weight;
  std::optional<Parameter> bias;
};

/// One number for both directions, or {height, width}.
struct Conv2dOptions {
  ops::HeightWidth stride = 1;
  ops::HeightWidth padding = 0;
  ops::HeightWidth dilation = 1;
  int groups = 1;
  bool bias = true;
};

/// weight: [out, in / groups, kh, kw], bias: [out].
class Conv2d : public Layer<Conv2d>, public ConvolutionParameters {
 public:
  /// Throws UsageError if groups do not divide both channel counts.
  Conv2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
         const ops::HeightWidth& kernel, const Conv2dOptions& options = {});

  Var forward(const Var& x);

 private:
  ops::ConvolutionGeometry geometry_;
};

struct ConvTranspose2dOptions {
  ops::HeightWidth stride = 1;
  ops::HeightWidth padding = 0;
  ops::HeightWidth output_padding = 0;  ///< added to the result's extent; less than the stride
  ops::HeightWidth dilation = 1;
  int groups = 1;
  bool bias = true;
};

/// weight: [in, out / groups, kh, kw], bias: [out]. The result's extents: conv_transpose2d.
class ConvTranspose2d : public Layer<ConvTranspose2d>, public ConvolutionParameters {
 public:
  /// Throws UsageError if groups do not divide both channel counts.
  ConvTranspose2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
                  const ops::HeightWidth& kernel, const ConvTranspose2dOptions& options = {});

  Var forward(const Var& x);

 private:
  ops::ConvolutionGeometry geometry_;
  ops::HeightWidth output_padding_;
};

}  // namespace lockstep::nn
