// Convolutions by cuDNN, in the layout that its algorithms need.
#include "kernels/cuda/convolution.h"

#include <array>
#include <span>
#include <tuple>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t max_workspace_bytes = std::size_t{1} << 30;
constexpr int max_algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;  // no pass has more

cudnnDataType_t cudnn_type(DType dtype) {
  if (dtype == DType::float32) return CUDNN_DATA_FLOAT;
  if (dtype == DType::bfloat16) return CUDNN_DATA_BFLOAT16;
  throw UsageError("convolution on a GPU does not support {}", to_string(dtype));
}

/// Whether an algorithm of cuDNN's list is available, deterministic and free of TF32.
template <class Performance>
bool is_allowed(const Performance& p, const CudnnConvolution& problem) {
  return p.status == CUDNN_STATUS_SUCCESS && p.determinism == CUDNN_DETERMINISTIC &&
         (problem.dtype != DType::float32 || p.mathType == CUDNN_FMA_MATH ||
          p.mathType == CUDNN_DEFAULT_MATH);
}

}  // namespace

struct Convolutions::Plan {
  Plan(const CudnnConvolution& problem, cudnnHandle_t handle, int device) : device_(device) {
    describe(problem);
    choose(problem, handle);
  }

  Owned<cudnnTensorDescriptor_t, cudnnDestroyTensorDescriptor> x, y;
  Owned<cudnnFilterDescriptor_t, cudnnDestroyFilterDescriptor> weight;
  Owned<cudnnConvolutionDescriptor_t, cudnnDestroyConvolutionDescriptor> convolution;
  cudnnConvolutionFwdAlgo_t forward{};
  cudnnConvolutionBwdDataAlgo_t backward_input{};
  cudnnConvolutionBwdFilterAlgo_t backward_weight{};
  std::size_t workspace_bytes = 0;
  bool usable = false;  ///< there is an algorithm

 private:
  void describe(const CudnnConvolution& p) {
    const ops::ConvolutionSizes& s = p.sizes;
    const cudnnTensorFormat_t format = p.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const cudnnDataType_t type = cudnn_type(p.dtype);
    const auto n = [](std::int64_t extent) { return static_cast<int>(extent); };
    make(x, cudnnCreateTensorDescriptor, "cudnnCreateTensorDescriptor", device_);
    make(y, cudnnCreateTensorDescriptor, "cudnnCreateTensorDescriptor", device_);
    make(weight, cudnnCreateFilterDescriptor, "cudnnCreateFilterDescriptor", device_);
    make(convolution, cudnnCreateConvolutionDescriptor, "cudnnCreateConvolutionDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(x.get(), format, type, n(s.images), n(s.in_channels), n(s.height),
                                     n(s.width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(y.get(), format, type, n(s.images), n(s.out_channels), n(s.out_height),
                                     n(s.out_width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetFilter4dDescriptor(weight.get(), type, format, n(s.out_channels),
                                     n(s.in_channels / s.geometry.groups), n(s.kernel_height),
                                     n(s.kernel_width)),
          "cudnnSetFilter4dDescriptor", device_);
    const auto& [stride, padding, groups, dilation] = s.geometry;
    check(cudnnSetConvolution2dDescriptor(convolution.get(), padding.height, padding.width, stride.height,
                                          stride.width, dilation.height, dilation.width,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor", device_);
    check(cudnnSetConvolutionGroupCount(convolution.get(), groups), "cudnnSetConvolutionGroupCount", device_);
    // FMA: no TF32 in a float32 product.
    set_math(p.dtype == DType::float32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
  }

  void choose(const CudnnConvolution& p, cudnnHandle_t handle) {
    switch (p.pass) {
      case ConvolutionPass::forward:
        return take_first<cudnnConvolutionFwdAlgoPerf_t>(
            p, forward, "cudnnGetConvolutionForwardAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionForwardAlgorithm_v7(handle, x.get(), weight.get(), convolution.get(),
                                                            y.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionForwardWorkspaceSize(handle, x.get(), weight.get(), convolution.get(),
                                                             y.get(), size...);
            });
      case ConvolutionPass::backward_input:
        return take_first<cudnnConvolutionBwdDataAlgoPerf_t>(
            p, backward_input, "cudnnGetConvolutionBackwardDataAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, weight.get(), y.get(),
                                                                 convolution.get(), x.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, weight.get(), y.get(),
                                                                  convolution.get(), x.get(), size...);
            });
      case ConvolutionPass::backward_weight:
        return take_first<cudnnConvolutionBwdFilterAlgoPerf_t>(
            p, backward_weight, "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x.get(), y.get(),
                                                                   convolution.get(), weight.get(), list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x.get(), y.get(),
                                                                    convolution.get(), weight.get(), size...);
            });
    }
  }

  /// Takes the first allowed algorithm of cuDNN's list, fastest first. The workspace is queried again,
  /// because the list's value is for the list's arithmetic, and float32 sets another.
  template <class Performance, class Algorithm, class List, class Size>
  void take_first(const CudnnConvolution& p, Algorithm& algorithm, const char* call, const List& list,
                  const Size& size) {
    std::array<Performance, max_algorithms> listed;
    int count = 0;
    check(list(max_algorithms, &count, listed.data()), call, device_);
    for (const Performance& one : std::span(listed).first(static_cast<std::size_t>(count))) {
      if (!is_allowed(one, p)) continue;
      if (p.dtype != DType::float32) set_math(one.mathType);
      usable =
          size(one.algo, &workspace_bytes) == CUDNN_STATUS_SUCCESS && workspace_bytes <= max_workspace_bytes;
      if (!usable) continue;
      algorithm = one.algo;
      return;
    }
    workspace_bytes = 0;
  }

  void set_math(cudnnMathType_t math) {
    check(cudnnSetConvolutionMathType(convolution.get(), math), "cudnnSetConvolutionMathType", device_);
  }

  int device_;
};

std::size_t CudnnConvolution::hash() const { return hash_of(pass, sizes.hash(), dtype, channels_last); }

Convolutions::Convolutions(int device, cudaStream_t stream) : device_(device) {
  make(handle_, cudnnCreate, "cudnnCreate", device);
  check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream", device);
}

Convolutions::~Convolutions() = default;

Convolutions::Plan& Convolutions::plan_for(const CudnnConvolution& problem) {
  return *plans_.get(problem, [&] { return std::make_unique<Plan>(problem, handle_.get(), device_); });
}

CudnnConvolution Convolutions::in_supported_layout(const CudnnConvolution& problem) {
  if (plan_for(problem).usable) return problem;
  CudnnConvolution other = problem;
  other.channels_last = !problem.channels_last;
  if (plan_for(other).usable) return other;
  const ops::ConvolutionSizes& s = problem.sizes;
  throw FailureError(
      "cuDNN on cuda:{} has no reproducible algorithm for a convolution of [{}, {}, {}, {}] by [{}, {}, {}, "
      "{}] of {}; another batch or another number of channels may have one",
      device_, s.images, s.in_channels, s.height, s.width, s.out_channels, s.in_channels / s.geometry.groups,
      s.kernel_height, s.kernel_width, to_string(problem.dtype));
}

std::size_t Convolutions::workspace_bytes(const CudnnConvolution& problem) {
  return plan_for(problem).workspace_bytes;
}

void Convolutions::run(const CudnnConvolution& problem, void* x, void* weight, void* y, void* workspace) {
  const Plan& plan = plan_for(problem);
  const float one = 1, zero = 0;
  switch (problem.pass) {
    case ConvolutionPass::forward:
      return check(cudnnConvolutionForward(handle_.get(), &one, plan.x.get(), x, plan.weight.get(), weight,
                                           plan.convolution.get(), plan.forward, workspace,
                                           plan.workspace_bytes, &zero, plan.y.get(), y),
                   "cudnnConvolutionForward", device_);
    case ConvolutionPass::backward_input:
      return check(cudnnConvolutionBackwardData(handle_.get(), &one, plan.weight.get(), weight, plan.y.get(),
                                                y, plan.convolution.get(), plan.backward_input, workspace,
                                                plan.workspace_bytes, &zero, plan.x.get(), x),
                   "cudnnConvolutionBackwardData", device_);
    case ConvolutionPass::backward_weight:
      return check(cudnnConvolutionBackwardFilter(handle_.get(), &one, plan.x.get(), x, plan.y.get(), y,
                                                  plan.convolution.get(), plan.backward_weight, workspace,
                                                  plan.workspace_bytes, &zero, plan.weight.get(), weight),
                   "cudnnConvolutionBackwardFilter", device_);
  }
}

namespace {

/// A pass of `op` between x and y in a layout that cuDNN supports: channels last if x or y has this layout
/// and it is supported. (One channel is in both.)
template <class Op>
CudnnConvolution problem_of(CudaBackend& gpu, ConvolutionPass pass, const Op& op, const Tensor& x,
                            const Tensor& y) {
  return gpu.convolutions().in_supported_layout(
      {.pass = pass,
       .sizes = op.sizes(),
       .dtype = x.dtype(),
       .channels_last = x.channel_block() != 1 || y.channel_block() != 1});
}

/// Memory for `tensor` in that layout: the tensor itself if it has it.
Tensor memory_in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  return tensor.channel_block() == block ? tensor : gpu.empty(tensor.shape(), tensor.dtype(), block);
}

/// Copies `from` to `to` in the layout of `to`, unless they share memory.
void copy_layout(CudaBackend& gpu, const Tensor& from, const Tensor& to) {
  if (!from.shares_memory_with(to)) gpu.run(ops::ToLayout{from, to});
}

/// `tensor` itself, or its elements in the other layout.
Tensor in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const Tensor converted = memory_in_layout(gpu, tensor, channels_last);
  copy_layout(gpu, tensor, converted);
  return converted;
}

/// Whether channels last differs for weights [O, C, kh, kw]: O matrices [C, kh kw] are then transposed.
bool transposes(const Tensor& weight, bool channels_last) {
  return channels_last && weight.size(2) * weight.size(3) > 1 && weight.size(1) > 1;
}

/// Weights in the activations' type and layout.
Tensor packed_weight(CudaBackend& gpu, const Tensor& weight, DType dtype, bool channels_last) {
  const Tensor converted = gpu.in_type(weight, dtype);
  if (!transposes(weight, channels_last)) return converted;
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
  const CudnnConvolution problem = problem_of(gpu, ConvolutionPass::forward, op, op.x, op.y);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(gpu, op.x, last), packed = packed_weight(gpu, op.weight, op.x.dtype(), last);
  const Tensor to = memory_in_layout(gpu, op.y, last);
  run(gpu, problem, from, packed, to);
  if (op.bias) add_channels(gpu.launch(), op.bias, to);
  copy_layout(gpu, to, op.y);
}

void convolution_backward_input(CudaBackend& gpu, const ops::ConvolutionBackwardInput& op) {
  if (op.dx.size(0) == 0) return;
  const CudnnConvolution problem = problem_of(gpu, ConvolutionPass::backward_input, op, op.dx, op.dy);
  const bool last = problem.channels_last;
  const Tensor from = in_layout(gpu, op.dy, last),
               packed = packed_weight(gpu, op.weight, op.dy.dtype(), last);
  const Tensor to = memory_in_layout(gpu, op.dx, last);
  run(gpu, problem, to, packed, from);
  copy_layout(gpu, to, op.dx);
}

void convolution_backward_weight(CudaBackend& gpu, const ops::ConvolutionBackwardWeight& op) {
  if (op.x.size(0) == 0) {
    if (!op.accumulate) gpu.fill(op.dweight, 0);
    return;
  }
  const CudnnConvolution problem = problem_of(gpu, ConvolutionPass::backward_weight, op, op.x, op.dy);
  const bool last = problem.channels_last, transposed = transposes(op.dweight, last);
  const Tensor from = in_layout(gpu, op.x, last), upstream = in_layout(gpu, op.dy, last);
  const bool direct = !transposed && !op.accumulate && op.x.dtype() == DType::float32;
  Tensor gradient = direct ? op.dweight : gpu.empty(op.dweight.shape(), op.x.dtype());
  run(gpu, problem, from, gradient, upstream);
  if (direct) return;
  if (transposed) {
    const Tensor packed = std::exchange(gradient, gpu.empty(op.dweight.shape(), op.x.dtype()));
    transpose(gpu.launch(), packed, gradient, gradient.size(0), gradient.size(2) * gradient.size(3),
              gradient.size(1));
  }
  gradient = gpu.in_type(gradient, DType::float32);
  if (op.accumulate) {
    gpu.run(ops::Accumulate{op.dweight, gradient});
  } else {
    gpu.copy(gradient, op.dweight);
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
