// Convolutions: checks, conversions of layouts and weights, and cuDNN's run.
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operands.h"

namespace lockstep::kernels {
namespace {

/// One layout for both sides: with the channels last if either is so. (One channel is both.)
CudnnConvolution problem_of(const Operands& args, CudnnPass pass, const Tensor& x, const Tensor& weight,
                            const Convolution& geometry, const char* y_name, const Tensor& y, DType dtype) {
  const ConvolutionSizes sizes = convolution_sizes(args.operation, x, weight, geometry, y_name, y);
  const bool last = args.image_of("x", x).channels_last || args.image_of(y_name, y).channels_last;
  return {.pass = pass,
          .sizes = sizes,
          .stride = geometry.stride,
          .padding = geometry.padding,
          .groups = geometry.groups,
          .dtype = dtype,
          .channels_last = last};
}

}  // namespace

// A weight [O, C, kh, kw] is O matrices [C, kh kw]; with the channels last they are transposed.
Tensor CudaBackend::packed_weight(const Tensor& weight, DType dtype, bool channels_last) {
  const Tensor converted = in_type(weight, dtype);
  const std::int64_t places = weight.size(2) * weight.size(3);
  if (!channels_last || places == 1 || weight.size(1) == 1) return converted;
  const Tensor packed = scratch(weight.numel(), dtype);
  launch_transpose(launch(), dtype, converted.raw(), packed.raw(), weight.size(0), weight.size(1), places);
  return packed;
}

Convolutions& CudaBackend::convolutions() {
  if (!convolutions_) convolutions_ = std::make_unique<Convolutions>(index_, launch().stream);
  return *convolutions_;
}

void CudaBackend::convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const Convolution& geometry, const Tensor& y) {
  const Operands args{"convolution", device()};
  CudnnConvolution problem = problem_of(args, CudnnPass::forward, x, weight, geometry, "y", y, x.dtype());
  args.raw("x", x);
  args.raw("weight", weight);
  args.of_type("y", y, x.dtype());
  const float* const biases = bias ? args.floats_of("bias", bias, {problem.sizes.out_channels}) : nullptr;
  const Launch on = launch();
  if (problem.sizes.images == 0) return;
  problem = convolutions().settled(problem);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(x, last), packed = packed_weight(weight, x.dtype(), last);
  const Tensor to = room_in_layout(y, last);
  const Tensor workspace = workspace_for(problem);
  convolutions().run(problem, from.raw(), packed.raw(), to.raw(), workspace.raw());
  if (biases) launch_add_channels(on, y.dtype(), args.image_of("y", to), biases, to.raw());
  if (!to.shares_memory_with(y)) to_layout(to, y);
}

void CudaBackend::convolution_backward_input(const Tensor& dy, const Tensor& weight,
                                             const Convolution& geometry, const Tensor& dx) {
  const Operands args{"convolution_backward_input", device()};
  CudnnConvolution problem =
      problem_of(args, CudnnPass::backward_input, dx, weight, geometry, "dy", dy, dy.dtype());
  args.raw("dy", dy);
  args.raw("weight", weight);
  args.of_type("dx", dx, dy.dtype());
  launch();
  if (problem.sizes.images == 0) return;
  problem = convolutions().settled(problem);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(dy, last), packed = packed_weight(weight, dy.dtype(), last);
  const Tensor to = room_in_layout(dx, last);
  const Tensor workspace = workspace_for(problem);
  convolutions().run(problem, to.raw(), packed.raw(), from.raw(), workspace.raw());
  if (!to.shares_memory_with(dx)) to_layout(to, dx);
}

void CudaBackend::convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                              const Tensor& dweight, bool accumulate) {
  const Operands args{"convolution_backward_weight", device()};
  CudnnConvolution problem =
      problem_of(args, CudnnPass::backward_weight, x, dweight, geometry, "dy", dy, x.dtype());
  args.raw("x", x);
  args.of_type("dy", dy, x.dtype());
  float* const gradient = args.floats("dweight", dweight);
  const Launch on = launch();
  const std::int64_t count = dweight.numel(), places = dweight.size(2) * dweight.size(3);
  if (problem.sizes.images == 0) {
    if (!accumulate) fill(dweight, 0);
    return;
  }
  problem = convolutions().settled(problem);
  const bool last = problem.channels_last, turned = last && places > 1 && dweight.size(1) > 1;
  const Tensor from = in_layout(x, last), upstream = in_layout(dy, last);
  const Tensor workspace = workspace_for(problem);
  const bool direct = !turned && !accumulate && x.dtype() == DType::float32;
  const Tensor packed = direct ? dweight : scratch(count, x.dtype());
  convolutions().run(problem, from.raw(), packed.raw(), upstream.raw(), workspace.raw());
  if (direct) return;
  Tensor made = packed;
  if (turned) {
    made = scratch(count, x.dtype());
    launch_transpose(on, x.dtype(), packed.raw(), made.raw(), dweight.size(0), places, dweight.size(1));
  }
  made = in_type(made, DType::float32);
  if (accumulate) {
    launch_accumulate(on, DType::float32, gradient, DType::float32, made.raw(), count);
  } else {
    copy(made.reshape(dweight.shape()), dweight);
  }
}

Tensor CudaBackend::workspace_for(const CudnnConvolution& problem) {
  const std::size_t bytes = convolutions().workspace_bytes(problem);
  return scratch(static_cast<std::int64_t>(bytes), DType::uint8);
}

Tensor CudaBackend::room_in_layout(const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  return tensor.channel_block() == block ? tensor : empty(tensor.shape(), tensor.dtype(), block);
}

}  // namespace lockstep::kernels
