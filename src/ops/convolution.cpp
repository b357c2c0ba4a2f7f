#include "lockstep/ops/convolution.h"

#include <fmt/format.h>

#include "lockstep/base/random.h"
#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks every shape. x, weight and y may be gradients.
ConvolutionSizes convolution_sizes(const char* operation, const Tensor& x, const Tensor& weight,
                                   const ConvolutionGeometry& geometry, const char* y_name, const Tensor& y) {
  const bool volumes = x.shape().rank() == 5;
  if (x.shape().rank() != (volumes ? 5 : 4) || weight.shape().rank() != x.shape().rank())
    throw UsageError(
        "{}: images have shape {} and weights {}; they must be [N, C, H, W] and [O, C / groups, kh, kw], or "
        "have a depth, too",
        operation, to_string(x.shape()), to_string(weight.shape()));
  const ConvolutionGeometry used{geometry.stride.with_depth(volumes, 1),
                                 geometry.padding.with_depth(volumes, 0), geometry.groups,
                                 geometry.dilation.with_depth(volumes, 1)};
  const auto& [stride, padding, groups, dilation] = used;
  if (groups < 1 || weight.numel() == 0 || x.size(1) != weight.size(1) * groups ||
      weight.size(0) % groups != 0)
    throw UsageError("{}: weights of shape {} in {} groups do not fit images of shape {}", operation,
                     to_string(weight.shape()), groups, to_string(x.shape()));
  const ConvolutionSizes sizes{
      .images = x.size(0),
      .in_channels = x.size(1),
      .height = x.size(-2),
      .width = x.size(-1),
      .out_channels = weight.size(0),
      .out_height = convolved_extent(operation, x.size(-2), weight.size(-2), stride.height, padding.height,
                                     dilation.height),
      .out_width = convolved_extent(operation, x.size(-1), weight.size(-1), stride.width, padding.width,
                                    dilation.width),
      .kernel_height = weight.size(-2),
      .kernel_width = weight.size(-1),
      .geometry = used,
      .volumes = volumes,
      .depth = volumes ? x.size(2) : 1,
      .out_depth = volumes ? convolved_extent(operation, x.size(2), weight.size(2), stride.depth,
                                              padding.depth, dilation.depth)
                           : 1,
      .kernel_depth = volumes ? weight.size(2) : 1};
  Shape result{sizes.images, sizes.out_channels};
  if (volumes) result.append(sizes.out_depth);
  result.append(sizes.out_height);
  result.append(sizes.out_width);
  require_shape(operation, y_name, y, result);
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
         static_cast<double>(out_channels * (in_channels / geometry.groups) * kernel_depth * kernel_height *
                             kernel_width) *
         static_cast<double>(images * out_depth * out_height * out_width);
}
std::string ConvolutionSizes::text() const {
  const auto& [d, h, w] = geometry.stride;
  std::string strides;
  if (h != w || (volumes && d != h))
    strides = volumes ? fmt::format(" / {}, {}, {}", d, h, w) : fmt::format(" / {}, {}", h, w);
  else if (h != 1)
    strides = fmt::format(" / {}", h);
  if (volumes)
    return fmt::format("{} x {} x {} x {} x {} -> {}, {} x {} x {}{}", images, in_channels, depth, height,
                       width, out_channels, kernel_depth, kernel_height, kernel_width, strides);
  return fmt::format("{} x {} x {} x {} -> {}, {} x {}{}", images, in_channels, height, width, out_channels,
                     kernel_height, kernel_width, strides);
}

std::size_t ConvolutionSizes::hash() const {
  const auto& [stride, padding, groups, dilation] = geometry;
  return hash_of(images, in_channels, height, width, out_channels, out_height, out_width, kernel_height,
                 kernel_width, stride.height, stride.width, padding.height, padding.width, groups,
                 dilation.height, dilation.width, volumes, depth, kernel_depth, stride.depth, padding.depth,
                 dilation.depth);
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
    if (value.shape().rank() < 4 || packed.channel_block() != value.size(1))
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
