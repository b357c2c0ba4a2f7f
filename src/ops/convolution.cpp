#include "lockstep/ops/convolution.h"

#include <fmt/format.h>

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks every shape. x, weight, y or their gradients.
ConvolutionSizes convolution_sizes(const char* operation, const Tensor& x, const Tensor& weight,
                                   const ConvolutionGeometry& geometry, const char* y_name, const Tensor& y) {
  const auto [stride, padding, groups] = geometry;
  if (x.shape().rank() != 4 || weight.shape().rank() != 4)
    throw UsageError(
        "{}: images have shape {} and weights {}; they must be [N, C, H, W] and [O, C / groups, kh, kw]",
        operation, to_string(x.shape()), to_string(weight.shape()));
  if (stride < 1 || padding < 0 || groups < 1)
    throw UsageError(
        "{}: stride {}, padding {}, groups {}: stride and groups must be at least 1, padding at least 0",
        operation, stride, padding, groups);
  ConvolutionSizes sizes{.images = x.size(0),
                         .in_channels = x.size(1),
                         .height = x.size(2),
                         .width = x.size(3),
                         .out_channels = weight.size(0),
                         .kernel_height = weight.size(2),
                         .kernel_width = weight.size(3),
                         .geometry = geometry};
  if (weight.numel() == 0 || sizes.in_channels != weight.size(1) * groups || sizes.out_channels % groups != 0)
    throw UsageError("{}: weights of shape {} in {} groups do not fit images of shape {}", operation,
                     to_string(weight.shape()), groups, to_string(x.shape()));
  if (sizes.height < 1 || sizes.width < 1 || sizes.height + 2 * padding < sizes.kernel_height ||
      sizes.width + 2 * padding < sizes.kernel_width)
    throw UsageError("{}: a kernel of {} x {} does not fit in images of shape {} with padding {}", operation,
                     sizes.kernel_height, sizes.kernel_width, to_string(x.shape()), padding);
  sizes.out_height = (sizes.height + 2 * padding - sizes.kernel_height) / stride + 1;
  sizes.out_width = (sizes.width + 2 * padding - sizes.kernel_width) / stride + 1;
  require_shape(operation, y_name, y, {sizes.images, sizes.out_channels, sizes.out_height, sizes.out_width});
  return sizes;
}

}  // namespace

double ConvolutionSizes::flops() const {
  return 2 *
         static_cast<double>(out_channels * (in_channels / geometry.groups) * kernel_height * kernel_width) *
         static_cast<double>(images * out_height * out_width);
}
std::string ConvolutionSizes::text() const {
  return fmt::format("{} x {} x {} x {} -> {}, {} x {}{}", images, in_channels, height, width, out_channels,
                     kernel_height, kernel_width,
                     geometry.stride == 1 ? "" : fmt::format(" / {}", geometry.stride));
}

ConvolutionSizes Convolution::sizes() const {
  const ConvolutionSizes sizes = convolution_sizes(name, x, weight, geometry, "y", y);
  if (bias) require_shape(name, "bias", bias, {sizes.out_channels});
  return sizes;
}

ConvolutionSizes ConvolutionBackwardInput::sizes() const {
  return convolution_sizes(name, dx, weight, geometry, "dy", dy);
}
ConvolutionSizes ConvolutionBackwardWeight::sizes() const {
  return convolution_sizes(name, x, dweight, geometry, "dy", dy);
}
void ChannelSums::check() const {
  require_channels(name, "dy", dy);
  require_shape(name, "dbias", dbias, {dy.size(1)});
}

}  // namespace lockstep::ops
