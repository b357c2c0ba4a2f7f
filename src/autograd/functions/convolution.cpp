// Convolutions, pooling and resizing of images [N, C, H, W], volumes [N, C, D, H, W] and rows [N, C, L].
#include <algorithm>
#include <array>

#include "autograd/functions/support.h"
#include "lockstep/ops/check.h"
#include "lockstep/ops/pooling.h"

namespace lockstep {
namespace {

using ops::ConvolutionGeometry;
using ops::Directions;

/// The number of the direction of an axis of images or volumes, which are the last ones.
int along(const Directions& of, int axis, int rank) {
  const int from_last = rank - 1 - axis;
  return from_last == 0 ? of.width : from_last == 1 ? of.height : of.depth;
}

/// The backend's channel block if it divides the channels of a group; else 1 (plain).
int channel_block_for(kernels::Backend& backend, std::int64_t channels, DType dtype, int groups) {
  const int block = backend.preferred_channel_block(channels, dtype);
  return channels / groups % block == 0 || groups == 1 ? block : 1;
}

/// x in the channel block that the backend prefers; x itself if it is already in channel blocks.
Var in_block(const Var& x, int groups) {
  if (x.value().channel_block() != 1) return x;
  return to_channel_block(x, channel_block_for(x.tape().backend(), x.shape()[1], x.value().dtype(), groups));
}

/// Memory for the result of a convolution or transposed convolution of x.
Tensor new_images(const Var& x, const Shape& shape, int groups) {
  kernels::Backend& backend = x.tape().backend();
  const DType type = x.value().dtype();
  return backend.empty(shape, type, channel_block_for(backend, shape[1], type, groups));
}

void require_fit(const char* function, const Var& x, const Var& weight, int rank) {
  require_rank(function, x, rank);
  require_one_type(function, x, weight);
  if (weight.shape().rank() != rank)
    throw UsageError("{}: the weight has shape {}; {} dimensions are needed", function,
                     to_string(weight.shape()), rank);
}

/// UsageError unless the weight reads `channels` channels; the bias has `outputs` elements.
void require_channels(const char* function, const Var& x, const Var& weight, const Var& bias,
                      std::int64_t channels, std::int64_t outputs, int groups) {
  if (groups < 1 || x.shape()[1] != channels || weight.shape()[0] % groups != 0)
    throw UsageError("{}: an input of shape {} does not fit a weight of shape {} in {} groups", function,
                     to_string(x.shape()), to_string(weight.shape()), groups);
  if (bias.value()) ops::require_shape(function, "the bias", bias.value(), {outputs});
}

/// A weight [O, C, k] as [O, C, 1, k]; a view.
Tensor as_images(const Tensor& weight) {
  if (weight.shape().rank() != 3) return weight;
  return weight.reshape({weight.size(0), weight.size(1), 1, weight.size(2)});
}

/// The gradient of such a weight, for each shard.
Tensor as_images(const Tensor& dweight, const Tape& tape) {
  const int first = tape.pass().shards == 1 ? 0 : 1;
  if (dweight.shape().rank() != first + 3) return dweight;
  return dweight.reshape(
      tape.of_each_shard({dweight.size(first), dweight.size(first + 1), 1, dweight.size(first + 2)}));
}

/// x: [N, C, H, W] or [N, C, D, H, W], plain or in channel blocks.
Var convolve(const char* function, const Var& input, const Var& weight, const Var& bias,
             const ConvolutionGeometry& geometry, const Var& residual = {}) {
  const auto& [stride, padding, groups, dilation] = geometry;
  require_channels(function, input, weight, bias, weight.shape()[1] * groups, weight.shape()[0], groups);
  const Shape& s = input.shape();
  const Shape w = as_images(weight.value()).shape();
  Shape y_shape{s[0], w[0]};
  for (int d = 2; d < s.rank(); ++d)
    y_shape.append(ops::convolved_extent(function, s[d], w[d], along(stride, d, s.rank()),
                                         along(padding, d, s.rank()), along(dilation, d, s.rank())));
  const Var x = in_block(input, groups);
  const Tensor y = new_images(x, y_shape, groups);
  const Var added = residual.value() ? to_channel_block(residual, y.channel_block()) : Var();
  x.tape().run_by_shard(
      ops::Convolution{x.value(), as_images(weight.value()), bias.value(), geometry, y, added.value()});
  return x.tape().record(
      y, {&x, &weight, &bias, &added},
      [x, weight, bias = bias.without_value(), added = added.without_value(), geometry](Tape& t,
                                                                                        const Tensor& dy) {
        t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
          t.run_by_shard(
              ops::ConvolutionBackwardWeight{x.value(), dy, geometry, as_images(dweight, t), accumulate});
        });
        t.write_gradient(bias, [&](const Tensor& dbias, bool accumulate) {
          t.run_by_shard(ops::ChannelSums{dy, dbias, accumulate});
        });
        add_new_gradient(t, x, [&](const Tensor& dx) {
          t.run_by_shard(ops::ConvolutionBackwardInput{dy, as_images(weight.value()), geometry, dx});
        });
        if (added.needs_gradient()) t.add_gradient(added, dy);
      });
}

}  // namespace

Var conv2d(const Var& x, const Var& weight, const Var& bias, const ConvolutionGeometry& geometry,
           const Var& residual) {
  require_fit("conv2d", x, weight, 4);
  return convolve("conv2d", x, weight, bias, geometry, residual);
}

Var conv1d(const Var& x, const Var& weight, const Var& bias, const ConvolutionGeometry& geometry) {
  require_fit("conv1d", x, weight, 3);
  const auto& [stride, padding, groups, dilation] = geometry;
  const Shape& s = x.shape();
  const Var y = convolve("conv1d", reshape(x, {s[0], s[1], 1, s[2]}), weight, bias,
                         {{1, stride.width}, {0, padding.width}, groups, {1, dilation.width}});
  return reshape(y, {s[0], y.shape()[1], y.shape()[3]});
}

Var conv3d(const Var& x, const Var& weight, const Var& bias, const ConvolutionGeometry& geometry,
           const Var& residual) {
  require_fit("conv3d", x, weight, 5);
  return convolve("conv3d", x, weight, bias, geometry, residual);
}

namespace {

Var convolve_transposed(const char* function, const Var& input, const Var& weight, const Var& bias,
                        const ConvolutionGeometry& geometry, const Directions& output_padding) {
  const Shape &s = input.shape(), &w = weight.shape();
  require_channels(function, input, weight, bias, w[0], w[1] * geometry.groups, geometry.groups);
  const int rank = s.rank();
  Shape y_shape{s[0], w[1] * geometry.groups};
  for (int d = 2; d < rank; ++d) {
    const int stride = along(geometry.stride, d, rank), padding = along(geometry.padding, d, rank),
              dilation = along(geometry.dilation, d, rank), more = along(output_padding, d, rank);
    const std::int64_t result =
        (s[d] - 1) * stride - 2 * std::int64_t{padding} + dilation * (w[d] - 1) + 1 + more;
    if (more < 0 || more >= stride || result < 1 ||
        ops::convolved_extent(function, result, w[d], stride, padding, dilation) != s[d])
      throw UsageError(
          "{}: no convolution of an image gives {} with a kernel of {}, stride {}, padding {}, dilation {} "
          "and output padding {} (which must be less than the stride)",
          function, to_string(s), to_string(w), stride, padding, dilation, more);
    y_shape.append(result);
  }
  const Var x = in_block(input, geometry.groups);
  const Tensor y = new_images(x, y_shape, geometry.groups);
  Tape& tape = x.tape();
  tape.run_by_shard(ops::ConvolutionBackwardInput{x.value(), weight.value(), geometry, y});
  if (bias.value()) tape.backend().run(ops::AddChannels{bias.value(), y});
  return tape.record(
      y, {&x, &weight, &bias}, [x, weight, bias = bias.without_value(), geometry](Tape& t, const Tensor& dy) {
        t.write_gradient(weight, [&](const Tensor& dweight, bool accumulate) {
          t.run_by_shard(ops::ConvolutionBackwardWeight{dy, x.value(), geometry, dweight, accumulate});
        });
        t.write_gradient(bias, [&](const Tensor& dbias, bool accumulate) {
          t.run_by_shard(ops::ChannelSums{dy, dbias, accumulate});
        });
        add_new_gradient(t, x, [&](const Tensor& dx) {
          t.run_by_shard(ops::Convolution{dy, weight.value(), {}, geometry, dx});
        });
      });
}

}  // namespace

Var conv_transpose2d(const Var& x, const Var& weight, const Var& bias, const ConvolutionGeometry& geometry,
                     const Directions& output_padding) {
  require_fit("conv_transpose2d", x, weight, 4);
  return convolve_transposed("conv_transpose2d", x, weight, bias, geometry, output_padding);
}

Var conv_transpose3d(const Var& x, const Var& weight, const Var& bias, const ConvolutionGeometry& geometry,
                     const Directions& output_padding) {
  require_fit("conv_transpose3d", x, weight, 5);
  return convolve_transposed("conv_transpose3d", x, weight, bias, geometry, output_padding);
}

namespace {

/// The number of windows of `kernel` elements over `extent` elements.
std::int64_t windows(const char* function, const Var& x, std::int64_t extent, std::int64_t kernel, int stride,
                     int padding) {
  if (stride < 1 || padding < 0 || kernel < 1)
    throw UsageError("{}: kernel {}, stride {} and padding {} are not a valid window", function, kernel,
                     stride, padding);
  const std::int64_t steps = extent + 2 * std::int64_t{padding} - kernel;
  if (steps < 0)
    throw UsageError("{}: a window of {} with padding {} is larger than the image {}", function, kernel,
                     padding, to_string(x.shape()));
  return steps / stride + 1;
}

/// UsageError unless x has so many dimensions.
Shape pooled(const char* function, const Var& x, const ops::PoolGeometry& pool, int rank) {
  require_rank(function, x, rank);
  const Shape& s = x.shape();
  Shape shape{s[0], s[1]};
  for (int d = 2; d < rank; ++d)
    shape.append(windows(function, x, s[d], along(pool.kernel, d, rank), along(pool.stride, d, rank),
                         along(pool.padding, d, rank)));
  return shape;
}

Var max_pool(const Var& x, const ops::PoolGeometry& geometry, const Shape& shape) {
  Tape& tape = x.tape();
  const int block = x.value().channel_block();
  const Tensor y = tape.backend().empty(shape, x.value().dtype(), block);
  const Tensor winners = tape.backend().empty(shape, DType::int32, block);
  tape.backend().run(ops::MaxPool{x.value(), geometry, y, winners});
  return record_unary(y, x, [winners, geometry](const Tensor& dy, const Tensor& dx) {
    return ops::MaxPoolBackward{dy, winners, geometry, dx};
  });
}

Var average_pool(const Var& x, const ops::PoolGeometry& geometry, const Shape& shape, bool adaptive) {
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty(shape, x.value().dtype(), x.value().channel_block());
  tape.backend().run(ops::AveragePool{x.value(), geometry, y, adaptive});
  return record_unary(y, x, [geometry, adaptive](const Tensor& dy, const Tensor& dx) {
    return ops::AveragePoolBackward{dy, geometry, dx, adaptive};
  });
}

Var global_average_pool(const Var& x) {
  Tape& tape = x.tape();
  Shape shape{x.shape()[0], x.shape()[1]};
  while (shape.rank() < x.shape().rank()) shape.append(1);
  const Tensor y = tape.backend().empty(shape, x.value().dtype());
  tape.backend().run(ops::GlobalAveragePool{x.value(), y});
  return record_unary(y, x, [](const Tensor& dy, const Tensor& dx) {
    return ops::GlobalAveragePoolBackward{dy, dx};
  });
}

}  // namespace

Var max_pool2d(const Var& x, const ops::PoolGeometry& geometry) {
  return max_pool(x, geometry, pooled("max_pool2d", x, geometry, 4));
}
Var max_pool3d(const Var& x, const ops::PoolGeometry& geometry) {
  return max_pool(x, geometry, pooled("max_pool3d", x, geometry, 5));
}
Var avg_pool2d(const Var& x, const ops::PoolGeometry& geometry) {
  return average_pool(x, geometry, pooled("avg_pool2d", x, geometry, 4), false);
}
Var avg_pool3d(const Var& x, const ops::PoolGeometry& geometry) {
  return average_pool(x, geometry, pooled("avg_pool3d", x, geometry, 5), false);
}

namespace {

/// The shape of images or volumes of another size. UsageError unless it has an extent for each direction.
Shape resized(const char* function, const Var& x, std::span<const std::int64_t> size) {
  const Shape& s = x.shape();
  if ((s.rank() != 4 && s.rank() != 5) || static_cast<int>(size.size()) != s.rank() - 2 ||
      std::ranges::min(size) < 1)
    throw UsageError("{}: cannot give {} the size {}", function, to_string(s), to_string(Shape(size)));
  Shape shape{s[0], s[1]};
  for (const std::int64_t extent : size) shape.append(extent);
  return shape;
}

}  // namespace

Var adaptive_avg_pool(const Var& x, std::span<const std::int64_t> size) {
  const Shape shape = resized("adaptive_avg_pool", x, size);
  if (std::ranges::max(size) == 1) return global_average_pool(x);
  return average_pool(x, {}, shape, true);
}

Var global_avg_pool2d(const Var& x) {
  require_rank("global_avg_pool2d", x, 4);
  return global_average_pool(x);
}

namespace {

Var upsample(const char* function, const Var& x, int scale, int rank) {
  require_rank(function, x, rank);
  if (scale < 1) throw UsageError("{}: a scale of {} is below 1", function, scale);
  Tape& tape = x.tape();
  Shape shape = x.shape();
  for (int d = 2; d < rank; ++d) shape = shape.with(d, shape[d] * scale);
  const Tensor y = tape.backend().empty(shape, x.value().dtype(), x.value().channel_block());
  tape.backend().run(ops::UpsampleNearest{x.value(), scale, y});
  return record_unary(y, x, [scale](const Tensor& dy, const Tensor& dx) {
    return ops::UpsampleNearestBackward{dy, scale, dx};
  });
}

}  // namespace

Var upsample_nearest2d(const Var& x, int scale) { return upsample("upsample_nearest2d", x, scale, 4); }
Var upsample_nearest3d(const Var& x, int scale) { return upsample("upsample_nearest3d", x, scale, 5); }

Var resize_bilinear(const Var& x, std::int64_t height, std::int64_t width) {
  require_rank("resize_bilinear", x, 4);
  const Shape& s = x.shape();
  if (height < 1 || width < 1)
    throw UsageError("resize_bilinear: cannot resize images of shape {} to {} x {}", to_string(s), height,
                     width);
  Tape& tape = x.tape();
  const Tensor y =
      tape.backend().empty({s[0], s[1], height, width}, x.value().dtype(), x.value().channel_block());
  tape.backend().run(ops::ResizeBilinear{x.value(), y});
  return record_unary(y, x, [](const Tensor& dy, const Tensor& dx) {
    return ops::ResizeBilinearBackward{dy, dx};
  });
}

/// The slices are resized as images, and then each line along the depth, as a column of an image.
Var resize_trilinear(const Var& x, std::int64_t depth, std::int64_t height, std::int64_t width) {
  const std::array<std::int64_t, 3> size{depth, height, width};
  const Shape& s = x.shape();
  require_rank("resize_trilinear", x, 5);
  const Shape shape = resized("resize_trilinear", x, size);
  const int block = x.value().channel_block();
  const std::int64_t runs = s[0] * ((s[1] + block - 1) / block), line = height * width * block;
  const Var slices = resize_bilinear(stored_as(x, {runs * s[2], block, s[3], s[4]}, block), height, width);
  const Var lines = resize_bilinear(stored_as(slices, {runs, 1, s[2], line}), depth, line);
  return stored_as(lines, shape, block);
}

}  // namespace lockstep
