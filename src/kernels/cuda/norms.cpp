// Layer norm and group norm.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

float* floats_of_numel(const Operands& args, const char* name, const Tensor& tensor, std::int64_t count) {
  require_numel(args.operation, name, tensor, count);
  return args.plain_floats(name, tensor);
}

Groups groups_of(const Operands& args, const Tensor& x, int groups, const Tensor& weight, const Tensor& mean,
                 const Tensor& inv_std) {
  const GroupSizes sizes = group_sizes(args.operation, x, groups, weight, mean, inv_std);
  return {.images = sizes.images,
          .groups = sizes.groups,
          .group_channels = sizes.channels_per_group,
          .places = sizes.places};
}

}  // namespace

void CudaBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                             const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  const Operands args{"layer_norm", device()};
  const auto [count, width] = rows_of(args.operation, x);
  require_shape(args.operation, "y", y, x.shape());
  launch_layer_norm(launch(), x.dtype(), args.plain_of_type("x", x, x.dtype()), nullptr, nullptr, count,
                    width, floats_of_numel(args, "weight", weight, width),
                    floats_of_numel(args, "bias", bias, width), eps, args.plain_of_type("y", y, x.dtype()),
                    floats_of_numel(args, "mean", mean, count),
                    floats_of_numel(args, "inv_std", inv_std, count));
}

void CudaBackend::add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias,
                                 float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                                 const Tensor& inv_std) {
  const Operands args{"add_layer_norm", device()};
  const auto [count, width] = rows_of(args.operation, a);
  require_shape(args.operation, "b", b, a.shape());
  require_shape(args.operation, "the sum", sum, a.shape());
  require_shape(args.operation, "y", y, a.shape());
  launch_layer_norm(launch(), a.dtype(), args.plain_of_type("a", a, a.dtype()),
                    args.plain_of_type("b", b, a.dtype()), args.plain_of_type("the sum", sum, a.dtype()),
                    count, width, floats_of_numel(args, "weight", weight, width),
                    floats_of_numel(args, "bias", bias, width), eps, args.plain_of_type("y", y, a.dtype()),
                    floats_of_numel(args, "mean", mean, count),
                    floats_of_numel(args, "inv_std", inv_std, count));
}

void CudaBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                      const Tensor& mean, const Tensor& inv_std, const Tensor& beside,
                                      const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                      bool accumulate) {
  const Operands args{"layer_norm_backward", device()};
  const auto [count, width] = rows_of(args.operation, x);
  require_shape(args.operation, "dy", dy, x.shape());
  require_shape(args.operation, "dx", dx, x.shape());
  if (beside) require_shape(args.operation, "beside", beside, x.shape());
  const Tensor partial = scratch(2 * row_chunks(count) * width);
  launch_layer_norm_backward(
      launch(), x.dtype(), args.plain_of_type("dy", dy, x.dtype()), args.plain_of_type("x", x, x.dtype()),
      count, width, floats_of_numel(args, "weight", weight, width),
      floats_of_numel(args, "mean", mean, count), floats_of_numel(args, "inv_std", inv_std, count),
      beside ? args.plain_of_type("beside", beside, x.dtype()) : nullptr,
      args.plain_of_type("dx", dx, x.dtype()), floats_of_numel(args, "dweight", dweight, width),
      floats_of_numel(args, "dbias", dbias, width), accumulate, partial.data<float>());
}

void CudaBackend::group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                             const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  const Operands args{"group_norm", device()};
  const Groups sizes = groups_of(args, x, groups, weight, mean, inv_std);
  require_shape(args.operation, "y", y, x.shape());
  launch_group_norm(launch(), x.dtype(), args.plain_of_type("x", x, x.dtype()), sizes,
                    args.plain_floats("weight", weight), args.floats_of("bias", bias, {sizes.channels()}),
                    eps, args.plain_of_type("y", y, x.dtype()), args.plain_floats("mean", mean),
                    args.plain_floats("inv_std", inv_std));
}

void CudaBackend::group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                                      const Tensor& mean, const Tensor& inv_std, const Tensor& dx,
                                      const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  const Operands args{"group_norm_backward", device()};
  const Groups sizes = groups_of(args, x, groups, weight, mean, inv_std);
  require_shape(args.operation, "dy", dy, x.shape());
  require_shape(args.operation, "dx", dx, x.shape());
  const Tensor sums = scratch(2 * sizes.images * sizes.channels());
  launch_group_norm_backward(
      launch(), x.dtype(), args.plain_of_type("dy", dy, x.dtype()), args.plain_of_type("x", x, x.dtype()),
      sizes, args.plain_floats("weight", weight), args.plain_floats("mean", mean),
      args.plain_floats("inv_std", inv_std), args.plain_of_type("dx", dx, x.dtype()),
      args.floats_of("dweight", dweight, {sizes.channels()}),
      args.floats_of("dbias", dbias, {sizes.channels()}), accumulate, sums.data<float>());
}

}  // namespace lockstep::kernels
