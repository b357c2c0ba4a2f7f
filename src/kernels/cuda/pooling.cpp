// Pooling and upsampling.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

PoolSizes sizes_of(const Operands& args, const char* large_name, const Tensor& large, const char* small_name,
                   const Tensor& small, const Pool& geometry) {
  const Image image = args.image_of(large_name, large);
  const Windows windows = windows_of(args.operation, large, small_name, small, geometry);
  require_block(args.operation, small_name, small, large);
  return {.images = large.size(0),
          .channels = large.size(1),
          .height = windows.height,
          .width = windows.width,
          .out_height = windows.out_height,
          .out_width = windows.out_width,
          .kernel = geometry.kernel,
          .stride = geometry.stride,
          .padding = geometry.padding,
          .channels_last = image.channels_last};
}

Image image_with_places(const Operands& args, const char* name, const Tensor& tensor) {
  const Image image = args.image_of(name, tensor);
  if (image.places > 0) return image;
  throw UsageError("{}: {} of shape {} has no places to average", args.operation, name,
                   to_string(tensor.shape()));
}

}  // namespace

void CudaBackend::max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) {
  const Operands args{"max_pool", device()};
  const PoolSizes sizes = sizes_of(args, "x", x, "y", y, geometry);
  require_alike(args.operation, "winners", winners, y);
  launch_max_pool(launch(), x.dtype(), args.raw("x", x), sizes, args.of_type("y", y, x.dtype()),
                  args.elements<std::int32_t>("winners", winners));
}

void CudaBackend::max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                                    const Tensor& dx) {
  const Operands args{"max_pool_backward", device()};
  const PoolSizes sizes = sizes_of(args, "dx", dx, "dy", dy, geometry);
  require_alike(args.operation, "winners", winners, dy);
  launch_max_pool_backward(launch(), dy.dtype(), args.raw("dy", dy),
                           args.elements<std::int32_t>("winners", winners), sizes,
                           args.of_type("dx", dx, dy.dtype()));
}

void CudaBackend::average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) {
  const Operands args{"average_pool", device()};
  const PoolSizes sizes = sizes_of(args, "x", x, "y", y, geometry);
  launch_average_pool(launch(), x.dtype(), args.raw("x", x), sizes, args.of_type("y", y, x.dtype()));
}

void CudaBackend::average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) {
  const Operands args{"average_pool_backward", device()};
  const PoolSizes sizes = sizes_of(args, "dx", dx, "dy", dy, geometry);
  launch_average_pool_backward(launch(), dy.dtype(), args.raw("dy", dy), sizes,
                               args.of_type("dx", dx, dy.dtype()));
}

void CudaBackend::global_average_pool(const Tensor& x, const Tensor& y) {
  const Operands args{"global_average_pool", device()};
  const Image image = image_with_places(args, "x", x);
  require_pooled(args.operation, "y", y, x);
  launch_global_average_pool(launch(), x.dtype(), args.raw("x", x), image, args.of_type("y", y, x.dtype()));
}

void CudaBackend::global_average_pool_backward(const Tensor& dy, const Tensor& dx) {
  const Operands args{"global_average_pool_backward", device()};
  const Image image = image_with_places(args, "dx", dx);
  require_pooled(args.operation, "dy", dy, dx);
  launch_global_average_pool_backward(launch(), dy.dtype(), args.raw("dy", dy), image,
                                      args.of_type("dx", dx, dy.dtype()));
}

void CudaBackend::upsample_nearest(const Tensor& x, int scale, const Tensor& y) {
  const Operands args{"upsample_nearest", device()};
  const Image image = args.image_of("x", x);
  require_upsampled(args.operation, "y", y, x, scale);
  launch_upsample(launch(), x.dtype(), args.raw("x", x), image, x.size(3), scale,
                  args.of_type("y", y, x.dtype()));
}

void CudaBackend::upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) {
  const Operands args{"upsample_nearest_backward", device()};
  const Image image = args.image_of("dx", dx);
  args.image_of("dy", dy);
  require_upsampled(args.operation, "dy", dy, dx, scale);
  launch_upsample_backward(launch(), dy.dtype(), args.raw("dy", dy), image, dx.size(3), scale,
                           args.of_type("dx", dx, dy.dtype()));
}

}  // namespace lockstep::kernels
