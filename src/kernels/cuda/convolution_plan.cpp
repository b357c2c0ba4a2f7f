#include "kernels/cuda/convolution_plan.h"

#include <array>
#include <span>
#include <tuple>

#include "kernels/cuda/error.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

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

}  // namespace lockstep::kernels
