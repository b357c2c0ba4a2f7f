#include "lockstep/ops/convolution.h"

#include <fmt/format.h>

#include "lockstep/base/random.h"
#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks every shape. x, weight and y may be gradients.
ConvolutionSizes convolution_sizes(const char* operation, const Tensor& x, const Tensor& weight,
                                   const ConvolutionGeometry& geometry, const char* y_name, const Tensor& y) {
  if (x.shape().rank() != 4 || weight.shape().rank() != 4)
    throw UsageError(
        "{}: images have shape {} and weights {}; they must be [N, C, H, W] and [O, C / groups, kh, kw]",
        operation, to_string(x.shape()), to_string(weight.shape()));
  const auto& [stride, padding, groups, dilation] = geometry;
  if (groups < 1 || weight.numel() == 0 || x.size(1) != weight.size(1) * groups ||
      weight.size(0) % groups != 0)
    throw UsageError("{}: weights of shape {} in {} groups do not fit images of shape {}", operation,
                     to_string(weight.shape()), groups, to_string(x.shape()));
  const ConvolutionSizes sizes{.images = x.size(0),
                               .in_channels = x.size(1),
                               .height = x.size(2),
                               .width = x.size(3),
                               .out_channels = weight.size(0),
                               .out_height = convolved_extent(operation, x.size(2), weight.size(2),
                                                              stride.height, padding.height, dilation.height),
                               .out_width = convolved_extent(operation, x.size(3), weight.size(3),
                                                             stride.width, padding.width, dilation.width),
                               .kernel_height = weight.size(2),
                               .kernel_width = weight.size(3),
                               .geometry = geometry};
  require_shape(operation, y_name, y, {sizes.images, sizes.out_channels, sizes.out_height, sizes.out_width});
  return sizes;
}

}  // namespace

std::int64_t convolved_extent(const char* function, std::int64_t extent, std::int64_t kernel, int stride,
                              int padding, int dilation) {
  if (stride < 1 || padding < 0 || dilation < 1)
    throw UsageError(
        "{}: stride {}, padding {}, dilation {}: stride and dilation must be at least 1, padding at least 0",
        function, stride, padding, dilation);
  const std::int64_t steps = extent + 2 * std::int64_t{padding} - dilation * (kernel - 1) - 1;
  if (extent < 1 || kernel < 1 || steps < 0)
    throw UsageError(
        "{}: a kernel of {} elements with dilation {} does not fit into {} elements with padding {}",
        function, kernel, dilation, extent, padding);
  return steps / stride + 1;
}

double ConvolutionSizes::flops() const {
  return 2 *
         static_cast<double>(out_channels * (in_channels / geometry.groups) * kernel_height * kernel_width) *
         static_cast<double>(images * out_height * out_width);
}
std::string ConvolutionSizes::text() const {
  return fmt::format("{} x {} x {} x {} -> {}, {} x {}{}", images, in_channels, height, width, out_channels,
                     kernel_height, kernel_width,
                     geometry.stride == HeightWidth(1) ? ""
                     : geometry.stride.height == geometry.stride.width
                         ? fmt::format(" / {}", geometry.stride.height)
                         : fmt::format(" / {}, {}", geometry.stride.height, geometry.stride.width));
}

std::size_t ConvolutionSizes::hash() const {
  const auto& [stride, padding, groups, dilation] = geometry;
  return hash_of(images, in_channels, height, width, out_channels, out_height, out_width, kernel_height,
                 kernel_width, stride.height, stride.width, padding.height, padding.width, groups,
                 dilation.height, dilation.width);
}

ConvolutionSizes Convolution::sizes() const {
  const ConvolutionSizes sizes = convolution_sizes(name, x, weight, geometry, "y", y);
  if (bias) require_shape(name, "bias", bias, {sizes.out_channels});
  if (residual) require_shape(name, "residual", residual, y.shape());
  return sizes;
}

ConvolutionSizes ConvolutionBackwardInput::sizes() const {
  return convolution_sizes(name, dx, weight, geometry, "dy", dy);
}
ConvolutionSizes ConvolutionBackwardWeight::sizes() const {
  return convolution_sizes(name, x, dweight, geometry, "dy", dy);
}
void PackWeights::check() const {
  for (const auto& [value, packed] : weights) {
    require_shape(name, "packed", packed, value.shape());
    if (value.shape().rank() != 4 || packed.channel_block() != value.size(1))
      throw UsageError(
          "{}: the copy of a weight of shape {} is in channel blocks of {}; it must be in blocks of C", name,
          to_string(value.shape()), packed.channel_block());
  }
}
void AddChannels::check() const {
  require_channels(name, "y", y);
  require_shape(name, "bias", bias, {y.size(1)});
}
void ChannelSums::check() const {
  require_channels(name, "dy", dy);
  require_shape(name, "dbias", dbias, {dy.size(1)});
}

}  // namespace lockstep::ops
