// Conv2d: the convolution of images.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct Conv2dOptions {
  int stride = 1;
  int padding = 0;
  int groups = 1;
  bool bias = true;
};

/// Square kernels. weight: [out, in / groups, kernel, kernel], bias: [out], both U(+-1 / sqrt(fan_in)) at
/// first, fan_in = in / groups * kernel^2.
class Conv2d : public Layer<Conv2d> {
 public:
  /// Throws UsageError if groups do not divide both channel counts.
  Conv2d(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, int kernel,
         const Conv2dOptions& options = {});

  Var forward(const Var& x);

 private:
  ops::ConvolutionGeometry geometry_;

 public:
  Parameter weight;
  std::optional<Parameter> bias;
};

}  // namespace lockstep::nn
