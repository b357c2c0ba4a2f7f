// Convolutions by cuDNN, in the layout that its algorithms want.
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

constexpr std::size_t most_workspace_bytes = std::size_t{1} << 30;
constexpr int most_algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;  // no pass has more

std::array<std::int64_t, 19> parts_of(const CudnnConvolution& p) {
  const ops::ConvolutionSizes& s = p.sizes;
  return {static_cast<std::int64_t>(p.pass),
          s.images,
          s.in_channels,
          s.height,
          s.width,
          s.out_channels,
          s.out_height,
          s.out_width,
          s.kernel_height,
          s.kernel_width,
          s.geometry.stride.height,
          s.geometry.stride.width,
          s.geometry.padding.height,
          s.geometry.padding.width,
          s.geometry.groups,
          s.geometry.dilation.height,
          s.geometry.dilation.width,
          static_cast<std::int64_t>(p.dtype),
          std::int64_t{p.channels_last}};
}

cudnnDataType_t cudnn_type(DType dtype) {
  if (dtype == DType::float32) return CUDNN_DATA_FLOAT;
  if (dtype == DType::bfloat16) return CUDNN_DATA_BFLOAT16;
  throw UsageError("convolution on a GPU is not built for {}", to_string(dtype));
}

/// Whether what cuDNN's list says of an algorithm lets it be taken; its memory there is for the list's
/// arithmetic.
template <class Performance>
bool may_serve(const Performance& p, const CudnnConvolution& problem) {
  return p.status == CUDNN_STATUS_SUCCESS && p.determinism == CUDNN_DETERMINISTIC &&
         (problem.dtype != DType::float32 || p.mathType == CUDNN_FMA_MATH ||
          p.mathType == CUDNN_DEFAULT_MATH);
}

}  // namespace

struct Convolutions::Plan {
  Plan(const CudnnConvolution& problem, cudnnHandle_t handle, int device) : device_(device) {
    try {
      describe(problem);
      choose(problem, handle);
    } catch (...) {
      free();
      throw;
    }
  }
  ~Plan() { free(); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
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
    check(cudnnCreateTensorDescriptor(&x), "cudnnCreateTensorDescriptor", device_);
    check(cudnnCreateTensorDescriptor(&y), "cudnnCreateTensorDescriptor", device_);
    check(cudnnCreateFilterDescriptor(&weight), "cudnnCreateFilterDescriptor", device_);
    check(cudnnCreateConvolutionDescriptor(&convolution), "cudnnCreateConvolutionDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(x, format, type, n(s.images), n(s.in_channels), n(s.height), n(s.width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetTensor4dDescriptor(y, format, type, n(s.images), n(s.out_channels), n(s.out_height),
                                     n(s.out_width)),
          "cudnnSetTensor4dDescriptor", device_);
    check(cudnnSetFilter4dDescriptor(weight, type, format, n(s.out_channels),
                                     n(s.in_channels / s.geometry.groups), n(s.kernel_height),
                                     n(s.kernel_width)),
          "cudnnSetFilter4dDescriptor", device_);
    const auto& [stride, padding, groups, dilation] = s.geometry;
    check(cudnnSetConvolution2dDescriptor(convolution, padding.height, padding.width, stride.height,
                                          stride.width, dilation.height, dilation.width,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor", device_);
    check(cudnnSetConvolutionGroupCount(convolution, groups), "cudnnSetConvolutionGroupCount", device_);
    // FMA: no TF32 behind a float32 product.
    set_math(p.dtype == DType::float32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
  }

  void choose(const CudnnConvolution& p, cudnnHandle_t handle) {
    switch (p.pass) {
      case CudnnPass::forward:
        return take_first<cudnnConvolutionFwdAlgoPerf_t>(
            p, forward, "cudnnGetConvolutionForwardAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, weight, convolution, y, list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionForwardWorkspaceSize(handle, x, weight, convolution, y, size...);
            });
      case CudnnPass::backward_input:
        return take_first<cudnnConvolutionBwdDataAlgoPerf_t>(
            p, backward_input, "cudnnGetConvolutionBackwardDataAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, weight, y, convolution, x, list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, weight, y, convolution, x, size...);
            });
      case CudnnPass::backward_weight:
        return take_first<cudnnConvolutionBwdFilterAlgoPerf_t>(
            p, backward_weight, "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
            [&](auto... list) {
              return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, y, convolution, weight,
                                                                   list...);
            },
            [&](auto... size) {
              return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x, y, convolution, weight,
                                                                    size...);
            });
    }
  }

  /// The first of cuDNN's list, fastest first, that may be used; or none. It counts only with a workspace in
  /// the arithmetic that is set: float32 has its own, whatever the list says.
  template <class Performance, class Algorithm, class List, class Size>
  void take_first(const CudnnConvolution& p, Algorithm& algorithm, const char* call, const List& list,
                  const Size& size) {
    std::array<Performance, most_algorithms> listed;
    int count = 0;
    check(list(most_algorithms, &count, listed.data()), call, device_);
    for (const Performance& one : std::span(listed).first(static_cast<std::size_t>(count))) {
      if (!may_serve(one, p)) continue;
      if (p.dtype != DType::float32) set_math(one.mathType);
      usable =
          size(one.algo, &workspace_bytes) == CUDNN_STATUS_SUCCESS && workspace_bytes <= most_workspace_bytes;
      if (!usable) continue;
      algorithm = one.algo;
      return;
    }
    workspace_bytes = 0;
  }

  void set_math(cudnnMathType_t math) {
    check(cudnnSetConvolutionMathType(convolution, math), "cudnnSetConvolutionMathType", device_);
  }

  void free() noexcept {
    if (convolution) cudnnDestroyConvolutionDescriptor(convolution);
    if (weight) cudnnDestroyFilterDescriptor(weight);
    if (y) cudnnDestroyTensorDescriptor(y);
    if (x) cudnnDestroyTensorDescriptor(x);
  }

  int device_;
};

std::size_t Convolutions::Hash::operator()(const CudnnConvolution& problem) const noexcept {
  return std::apply([](auto... part) { return hash_of(part...); }, parts_of(problem));
}

bool Convolutions::Same::operator()(const CudnnConvolution& a, const CudnnConvolution& b) const noexcept {
  return parts_of(a) == parts_of(b);
}

Convolutions::Convolutions(int device, cudaStream_t stream) : device_(device) {
  check(cudnnCreate(&handle_), "cudnnCreate", device);
  check(cudnnSetStream(handle_, stream), "cudnnSetStream", device);
}

Convolutions::~Convolutions() {
  plans_.clear();
  cudnnDestroy(handle_);
}

Convolutions::Plan& Convolutions::plan_for(const CudnnConvolution& problem) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return *found->second;
  return *plans_.emplace(problem, std::make_unique<Plan>(problem, handle_, device_)).first->second;
}

CudnnConvolution Convolutions::settled(const CudnnConvolution& problem) {
  if (plan_for(problem).usable) return problem;
  CudnnConvolution turned = problem;
  turned.channels_last = !problem.channels_last;
  if (plan_for(turned).usable) return turned;
  const ops::ConvolutionSizes& s = problem.sizes;
  throw FailureError(
      "cuDNN on cuda:{} has no reproducible algorithm for a convolution of [{}, {}, {}, {}] by [{}, {}, {}, "
      "{}] "
      "of {}; another batch or another number of channels may have one",
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
    case CudnnPass::forward:
      return check(cudnnConvolutionForward(handle_, &one, plan.x, x, plan.weight, weight, plan.convolution,
                                           plan.forward, workspace, plan.workspace_bytes, &zero, plan.y, y),
                   "cudnnConvolutionForward", device_);
    case CudnnPass::backward_input:
      return check(cudnnConvolutionBackwardData(handle_, &one, plan.weight, weight, plan.y, y,
                                                plan.convolution, plan.backward_input, workspace,
                                                plan.workspace_bytes, &zero, plan.x, x),
                   "cudnnConvolutionBackwardData", device_);
    case CudnnPass::backward_weight:
      return check(cudnnConvolutionBackwardFilter(handle_, &one, plan.x, x, plan.y, y, plan.convolution,
                                                  plan.backward_weight, workspace, plan.workspace_bytes,
                                                  &zero, plan.weight, weight),
                   "cudnnConvolutionBackwardFilter", device_);
  }
}

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
Tensor memory_in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const int block = channels_last ? static_cast<int>(tensor.size(1)) : 1;
  return tensor.channel_block() == block ? tensor : gpu.empty(tensor.shape(), tensor.dtype(), block);
}

/// `from`'s elements are `to`'s, if that is other memory.
void bring(CudaBackend& gpu, const Tensor& from, const Tensor& to) {
  if (!from.shares_memory_with(to)) gpu.run(ops::ToLayout{from, to});
}

/// `tensor` itself, or its elements in the other layout.
Tensor in_layout(CudaBackend& gpu, const Tensor& tensor, bool channels_last) {
  const Tensor converted = memory_in_layout(gpu, tensor, channels_last);
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
  const Tensor to = memory_in_layout(gpu, op.y, last);
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
  const Tensor to = memory_in_layout(gpu, op.dx, last);
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
