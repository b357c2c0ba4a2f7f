// Convolutions by cuDNN, in the layout that its algorithms want.
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

/// A pass of `op` between x and y, in the layout in which cuDNN has it: with the channels last if either is
/// so and it can be. (One channel is both.)
template <class Op>
CudnnConvolution settled(CudaBackend& gpu, CudnnPass pass, const Op& op, const Tensor& x, const Tensor& y) {
  return gpu.convolutions().settled({.pass = pass,
                                     .sizes = op.sizes(),
                                     .dtype = x.dtype(),
                                     .channels_last = x.channel_block() != 1 || y.channel_block() != 1});
}

/// Memory in that layout for what `tensor` is to hold: its own if it is so.
Tensor room_in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  return tensor.channel_block() == block ? tensor : gpu.empty(tensor.shape(), tensor.dtype(), block);
}

/// `from`'s elements are `to`'s, if that is other memory.
void bring(CudaBackend& gpu, const Tensor& from, const Tensor& to) {
  if (!from.shares_memory_with(to)) gpu.run(ops::ToLayout{from, to});
}

/// `tensor` itself, or its elements in the other layout.
Tensor in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const Tensor converted = room_in_layout(gpu, tensor, channels_last);
  bring(gpu, tensor, converted);
  return converted;
}

/// Whether weights [O, C, kh, kw], O matrices [C, kh kw], are there another way with the channels last:
/// transposed.
bool turns(const Tensor& weight, bool channels_last) {
  return channels_last && weight.size(2) * weight.size(3) > 1 && weight.size(1) > 1;
}

/// Weights in the activations' type and layout.
Tensor packed_weight(CudaBackend& gpu, const Tensor& weight, DType dtype, bool channels_last) {
  const Tensor converted = gpu.in_type(weight, dtype);
  if (!turns(weight, channels_last)) return converted;
  const Tensor packed = gpu.scratch(weight.numel(), dtype);
  transpose(gpu.launch(), converted, packed, weight.size(0), weight.size(1), weight.size(2) * weight.size(3));
  return packed;
}

void run(CudaBackend& gpu, const CudnnConvolution& problem, const Tensor& x, const Tensor& weight,
         const Tensor& y) {
  const auto bytes = static_cast<std::int64_t>(gpu.convolutions().workspace_bytes(problem));
  const Tensor workspace = gpu.scratch(bytes, DType::uint8);
  gpu.convolutions().run(problem, x.raw(), weight.raw(), y.raw(), workspace.raw());
}

void convolution(CudaBackend& gpu, const ops::Convolution& op) {
  if (op.x.size(0) == 0) return;
  const CudnnConvolution problem = settled(gpu, CudnnPass::forward, op, op.x, op.y);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(gpu, op.x, last), packed = packed_weight(gpu, op.weight, op.x.dtype(), last);
  const Tensor to = room_in_layout(gpu, op.y, last);
  run(gpu, problem, from, packed, to);
  if (op.bias) add_channels(gpu.launch(), op.bias, to);
  bring(gpu, to, op.y);
}

void convolution_backward_input(CudaBackend& gpu, const ops::ConvolutionBackwardInput& op) {
  if (op.dx.size(0) == 0) return;
  const CudnnConvolution problem = settled(gpu, CudnnPass::backward_input, op, op.dx, op.dy);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(gpu, op.dy, last),
               packed = packed_weight(gpu, op.weight, op.dy.dtype(), last);
  const Tensor to = room_in_layout(gpu, op.dx, last);
  run(gpu, problem, to, packed, from);
  bring(gpu, to, op.dx);
}

void convolution_backward_weight(CudaBackend& gpu, const ops::ConvolutionBackwardWeight& op) {
  if (op.x.size(0) == 0) {
    if (!op.accumulate) gpu.fill(op.dweight, 0);
    return;
  }
  const CudnnConvolution problem = settled(gpu, CudnnPass::backward_weight, op, op.x, op.dy);
  const bool last = problem.channels_last, turned = turns(op.dweight, last);
  const Tensor from = in_layout(gpu, op.x, last), upstream = in_layout(gpu, op.dy, last);
  const bool direct = !turned && !op.accumulate && op.x.dtype() == DType::float32;
  Tensor made = direct ? op.dweight : gpu.empty(op.dweight.shape(), op.x.dtype());
  run(gpu, problem, from, made, upstream);
  if (direct) return;
  if (turned) {
    const Tensor packed = std::exchange(made, gpu.empty(op.dweight.shape(), op.x.dtype()));
    transpose(gpu.launch(), packed, made, made.size(0), made.size(2) * made.size(3), made.size(1));
  }
  made = gpu.in_type(made, DType::float32);
  if (op.accumulate) {
    gpu.run(ops::Accumulate{op.dweight, made});
  } else {
    gpu.copy(made, op.dweight);
  }
}

void add_channels_of(CudaBackend& gpu, const ops::AddChannels& op) {
  add_channels(gpu.launch(), op.bias, op.y);
}

}  // namespace

Convolutions& CudaBackend::convolutions() {
  if (!convolutions_) convolutions_ = std::make_unique<Convolutions>(index_, pool_.stream());
  return *convolutions_;
}

void enter_convolution(CudaBackend& gpu) {
  gpu.enter<&convolution, &convolution_backward_input, &convolution_backward_weight, &add_channels_of>();
}

}  // namespace lockstep::kernels
