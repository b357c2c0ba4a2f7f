#include "lockstep/ops/pooling.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// Checks the geometry, and that `small` has the shape of `large` after the pooling.
Windows windows_of(const char* operation, const char* large_name, const Tensor& large, const char* small_name,
                   const Tensor& small, const PoolGeometry& geometry, bool adaptive = false) {
  require_images(operation, large_name, large);
  const int rank = large.shape().rank();
  if (small.shape().rank() != rank)
    throw UsageError("{}: {} has shape {}, and {} has {}", operation, small_name, to_string(small.shape()),
                     large_name, to_string(large.shape()));
  Shape shape{large.size(0), large.size(1)};
  const auto along = [&](int axis, int kernel, int stride, int padding) -> WindowsAlong {
    const std::int64_t extent = large.size(axis);
    if (adaptive) {
      shape.append(small.size(axis));
      if (extent < 1 || small.size(axis) < 1)
        throw UsageError("{}: {} of shape {} has no windows in {} of shape {}", operation, small_name,
                         to_string(small.shape()), large_name, to_string(large.shape()));
      return {.extent = extent, .outputs = small.size(axis), .adaptive = true};
    }
    if (kernel < 1 || stride < 1 || padding < 0 || 2 * padding > kernel)
      throw UsageError(
          "{}: kernel {}, stride {}, padding {}: kernel and stride must be at least 1 and padding at most "
          "half the kernel",
          operation, kernel, stride, padding);
    if (extent + 2 * padding < kernel)
      throw UsageError("{}: a kernel of {} does not fit in {} with padding {}", operation, kernel,
                       to_string(large.shape()), padding);
    shape.append((extent + 2 * padding - kernel) / stride + 1);
    return {extent, shape[-1], kernel, stride, padding};
  };
  const auto& [kernel, stride, padding] = geometry;
  Windows windows;
  if (rank == 5) windows.depth = along(2, kernel.depth, stride.depth, padding.depth);
  windows.height = along(rank - 2, kernel.height, stride.height, padding.height);
  windows.width = along(rank - 1, kernel.width, stride.width, padding.width);
  require_shape(operation, small_name, small, shape);
  require_block(operation, small_name, small, large);
  return windows;
}

/// UsageError unless `pooled` is [N, C], or has extent 1 in each direction of these images.
void require_pooled(const char* operation, const char* name, const Tensor& pooled, const char* images_name,
                    const Tensor& images) {
  require_images(operation, images_name, images);
  if (positions_of(images.shape()) == 0)
    throw UsageError("{}: {} of shape {} has no positions to average", operation, images_name,
                     to_string(images.shape()));
  Shape ones{images.size(0), images.size(1)};
  while (ones.rank() < images.shape().rank()) ones.append(1);
  if (!(pooled.shape() == ones)) require_shape(operation, name, pooled, {images.size(0), images.size(1)});
}

/// Checks that `large` is `small` upsampled, in the same channel block.
void require_upsampled(const char* operation, const char* name, const Tensor& large, const char* small_name,
                       const Tensor& small, int scale) {
  require_images(operation, small_name, small);
  if (scale < 1) throw UsageError("{}: the scale must be at least 1, not {}", operation, scale);
  Shape shape = small.shape();
  for (int d = 2; d < shape.rank(); ++d) shape = shape.with(d, shape[d] * scale);
  require_shape(operation, name, large, shape);
  require_block(operation, name, large, small);
}

}  // namespace

Windows MaxPool::windows() const { return windows_of(name, "x", x, "y", y, geometry); }
void MaxPool::check() const {
  (void)windows();
  require_alike(name, "winners", winners, y);
}

Windows MaxPoolBackward::windows() const { return windows_of(name, "dx", dx, "dy", dy, geometry); }
void MaxPoolBackward::check() const {
  (void)windows();
  require_alike(name, "winners", winners, dy);
}

Windows AveragePool::windows() const { return windows_of(name, "x", x, "y", y, geometry, adaptive); }
Windows AveragePoolBackward::windows() const {
  return windows_of(name, "dx", dx, "dy", dy, geometry, adaptive);
}

void GlobalAveragePool::check() const { require_pooled(name, "y", y, "x", x); }
void GlobalAveragePoolBackward::check() const { require_pooled(name, "dy", dy, "dx", dx); }

void UpsampleNearest::check() const { require_upsampled(name, "y", y, "x", x, scale); }
void UpsampleNearestBackward::check() const { require_upsampled(name, "dy", dy, "dx", dx, scale); }

namespace {

ResizeSizes resize_sizes(const char* operation, const char* x_name, const Tensor& x, const char* y_name,
                         const Tensor& y) {
  if (x.shape().rank() != 4 || y.shape().rank() != 4)
    throw UsageError("{}: {} has shape {} and {} {}; they must be [N, C, H, W]", operation, x_name,
                     to_string(x.shape()), y_name, to_string(y.shape()));
  require_shape(operation, y_name, y, {x.size(0), x.size(1), y.size(2), y.size(3)});
  require_block(operation, y_name, y, x);
  if (x.size(2) * x.size(3) * y.size(2) * y.size(3) == 0)
    throw UsageError("{}: cannot resize images of shape {} to shape {}: no positions", operation,
                     to_string(x.shape()), to_string(y.shape()));
  return {{x.size(2), y.size(2)}, {x.size(3), y.size(3)}};
}

}  // namespace

ResizeSizes ResizeBilinear::sizes() const { return resize_sizes(name, "x", x, "y", y); }
ResizeSizes ResizeBilinearBackward::sizes() const { return resize_sizes(name, "dx", dx, "dy", dy); }

}  // namespace lockstep::ops
