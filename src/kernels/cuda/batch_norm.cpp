// Batch norm in its parts, and the gradient of a bias per channel.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {
namespace {

double* pairs_of(const Operands& args, const char* name, const Tensor& tensor, const Image& image) {
  require_shape(args.operation, name, tensor, {2, image.channels});
  return args.elements<double>(name, tensor);
}

float* optional_of(const Operands& args, const char* name, const Tensor& tensor, const Image& image) {
  return tensor ? args.floats_of(name, tensor, {image.channels}) : nullptr;
}

ChannelScale scale_of(const Operands& args, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                      const Tensor& bias, const Image& image) {
  return {args.floats_of("mean", mean, {image.channels}),
          args.floats_of("inv_std", inv_std, {image.channels}), optional_of(args, "weight", weight, image),
          optional_of(args, "bias", bias, image)};
}

double* total_of(const Operands& args, const Tensor& total, std::int64_t channels) {
  require_shape(args.operation, "the total", total, {2 * channels + 1});
  return args.elements<double>("the total", total);
}

}  // namespace

void CudaBackend::channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) {
  const Operands args{"channel_sums", device()};
  const Image image = args.channels_of("dy", dy);
  float* const to = args.floats_of("dbias", dbias, {image.channels});
  const Tensor partial = scratch(channel_chunks(image) * image.channels, DType::float64);
  launch_channel_sums(launch(), dy.dtype(), args.raw("dy", dy), image, partial.data<double>(), to,
                      accumulate);
}

void CudaBackend::channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) {
  const Operands args{"channel_moments", device()};
  const Image image = args.channels_of("x", x);
  const float* const centres = args.floats_of("centre", centre, {image.channels});
  double* const to = pairs_of(args, "moments", moments, image);
  const Tensor partial = scratch(2 * channel_chunks(image) * image.channels, DType::float64);
  launch_channel_moments(launch(), x.dtype(), args.raw("x", x), image, centres, partial.data<double>(), to);
}

void CudaBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                             const Tensor& bias, const Tensor& y) {
  const Operands args{"batch_norm", device()};
  const Image image = args.channels_of("x", x);
  require_alike(args.operation, "y", y, x);
  launch_batch_norm(
      launch(), x.dtype(), args.raw("x", x), image, args.floats_of("mean", mean, {image.channels}),
      args.floats_of("inv_std", inv_std, {image.channels}), optional_of(args, "weight", weight, image),
      optional_of(args, "bias", bias, image), args.of_type("y", y, x.dtype()));
}

void CudaBackend::batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                           const Tensor& inv_std, const Tensor& sums) {
  const Operands args{"batch_norm_backward_sums", device()};
  const Image image = args.channels_of("dy", dy);
  require_alike(args.operation, "x", x, dy);
  const float* const means = args.floats_of("mean", mean, {image.channels});
  const float* const inv_stds = args.floats_of("inv_std", inv_std, {image.channels});
  double* const to = pairs_of(args, "sums", sums, image);
  const Tensor partial = scratch(2 * channel_chunks(image) * image.channels, DType::float64);
  launch_batch_norm_backward_sums(launch(), dy.dtype(), args.raw("dy", dy), args.of_type("x", x, dy.dtype()),
                                  image, means, inv_stds, partial.data<double>(), to);
}

void CudaBackend::batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                            const Tensor& inv_std, const Tensor& weight, const Tensor& sums,
                                            const Tensor& count, const Tensor& dx) {
  const Operands args{"batch_norm_backward_input", device()};
  const Image image = args.channels_of("dy", dy);
  require_alike(args.operation, "dx", dx, dy);
  require_alike(args.operation, "x", x, dy);
  launch_batch_norm_backward_input(
      launch(), dy.dtype(), args.raw("dy", dy), args.of_type("x", x, dy.dtype()), image,
      args.floats_of("mean", mean, {image.channels}), args.floats_of("inv_std", inv_std, {image.channels}),
      optional_of(args, "weight", weight, image), pairs_of(args, "sums", sums, image),
      count ? args.elements<double>("count", count) : nullptr, args.of_type("dx", dx, dy.dtype()));
}

void CudaBackend::batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                  const Tensor& weight, const Tensor& bias, const Tensor& shortcut,
                                  const Tensor& y) {
  const Operands args{"batch_norm_relu", device()};
  const Image image = args.channels_of("x", x);
  require_alike(args.operation, "y", y, x);
  if (shortcut) require_alike(args.operation, "the shortcut", shortcut, x);
  launch_batch_norm_relu(launch(), x.dtype(), args.raw("x", x), image,
                         scale_of(args, mean, inv_std, weight, bias, image),
                         shortcut ? args.of_type("the shortcut", shortcut, x.dtype()) : nullptr,
                         args.of_type("y", y, x.dtype()));
}

void CudaBackend::batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                                const Tensor& inv_std, const Tensor& weight,
                                                const Tensor& bias, const Tensor& sums) {
  const Operands args{"batch_norm_relu_backward_sums", device()};
  const Image image = args.channels_of("dy", dy);
  require_alike(args.operation, "x", x, dy);
  const ChannelScale by = scale_of(args, mean, inv_std, weight, bias, image);
  double* const to = pairs_of(args, "sums", sums, image);
  const Tensor partial = scratch(2 * channel_chunks(image) * image.channels, DType::float64);
  launch_batch_norm_relu_backward_sums(launch(), dy.dtype(), args.raw("dy", dy),
                                       args.of_type("x", x, dy.dtype()), image, by, partial.data<double>(),
                                       to);
}

void CudaBackend::batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                                 const Tensor& inv_std, const Tensor& weight,
                                                 const Tensor& bias, const Tensor& sums, const Tensor& count,
                                                 const Tensor& dx) {
  const Operands args{"batch_norm_relu_backward_input", device()};
  const Image image = args.channels_of("dy", dy);
  require_alike(args.operation, "dx", dx, dy);
  require_alike(args.operation, "x", x, dy);
  launch_batch_norm_relu_backward_input(
      launch(), dy.dtype(), args.raw("dy", dy), args.of_type("x", x, dy.dtype()), image,
      scale_of(args, mean, inv_std, weight, bias, image), pairs_of(args, "sums", sums, image),
      count ? args.elements<double>("count", count) : nullptr, args.of_type("dx", dx, dy.dtype()));
}

void CudaBackend::batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                                 const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                                 const Tensor& gated, const Tensor& sums) {
  const Operands args{"batch_norm_gated_backward_sums", device()};
  const Image image = args.channels_of("dy", dy);
  const auto alike = [&](const char* name, const Tensor& tensor) {
    require_alike(args.operation, name, tensor, dy);
    return args.of_type(name, tensor, dy.dtype());
  };
  const GatedGradient gradient{args.raw("dy", dy), beside ? alike("beside", beside) : nullptr, alike("y", y),
                               alike("gated", gated)};
  const float* const means = args.floats_of("mean", mean, {image.channels});
  const float* const inv_stds = args.floats_of("inv_std", inv_std, {image.channels});
  double* const to = pairs_of(args, "sums", sums, image);
  const Tensor partial = scratch(2 * channel_chunks(image) * image.channels, DType::float64);
  launch_batch_norm_gated_backward_sums(launch(), dy.dtype(), gradient, alike("x", x), image, means, inv_stds,
                                        partial.data<double>(), to);
}

// Moments are summed in float64 from the first element on, wherever their centre lies.
bool CudaBackend::moments_lack_digits(const Tensor&, float) { return false; }

void CudaBackend::batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var,
                                   float eps, const Tensor& mean, const Tensor& inv_std) {
  const Operands args{"batch_statistics", device()};
  const std::int64_t channels = mean.numel();
  launch_batch_statistics(
      launch(), total ? total_of(args, total, channels) : nullptr, channels,
      args.floats_of("centre", centre, {channels}), args.floats_of("running_var", running_var, {channels}),
      eps, args.floats_of("mean", mean, {channels}), args.floats_of("inv_std", inv_std, {channels}));
}

void CudaBackend::move_centre(const Tensor& total, const Tensor& from, const Tensor& to) {
  const Operands args{"move_centre", device()};
  const std::int64_t channels = from.numel();
  launch_move_centre(launch(), total_of(args, total, channels), channels,
                     args.floats_of("from", from, {channels}), args.floats_of("to", to, {channels}));
}

void CudaBackend::update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                                 const Tensor& running_var, const Tensor& batches) {
  const Operands args{"update_running", device()};
  const std::int64_t channels = running_mean.numel();
  require_shape(args.operation, "batches", batches, {});
  launch_update_running(launch(), total_of(args, total, channels), channels, momentum,
                        args.floats_of("running_mean", running_mean, {channels}),
                        args.floats_of("running_var", running_var, {channels}),
                        args.elements<std::int64_t>("batches", batches));
}

}  // namespace lockstep::kernels
