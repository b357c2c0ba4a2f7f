#include "kernels/cuda/convolution_plan.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/error.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t most_workspace_bytes = std::size_t{1} << 30;

std::array<std::int64_t, 16> parts_of(const CudnnConvolution& p) {
  const ConvolutionSizes& s = p.sizes;
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
          p.stride,
          p.padding,
          p.groups,
          static_cast<std::int64_t>(p.dtype),
          std::int64_t{p.channels_last},
          0};
}

cudnnDataType_t type_of(DType dtype) {
  if (dtype == DType::float32) return CUDNN_DATA_FLOAT;
  if (dtype == DType::bfloat16) return CUDNN_DATA_BFLOAT16;
  throw UsageError("convolution on a GPU is not built for {}", to_string(dtype));
}

/// The first of cuDNN's list, fastest first, that may be used; or none.
template <class Performance>
const Performance* chosen(const Performance* first, int count, const CudnnConvolution& problem) {
  const Performance* const end = first + count;
  const Performance* const found = std::find_if(first, end, [&](const Performance& p) {
    return p.status == CUDNN_STATUS_SUCCESS && p.determinism == CUDNN_DETERMINISTIC &&
           p.memory <= most_workspace_bytes &&
           (problem.dtype != DType::float32 || p.mathType == CUDNN_FMA_MATH ||
            p.mathType == CUDNN_DEFAULT_MATH);
  });
  return found == end ? nullptr : found;
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
    const ConvolutionSizes& s = p.sizes;
    const cudnnTensorFormat_t format = p.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const cudnnDataType_t type = type_of(p.dtype);
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
    check(cudnnSetFilter4dDescriptor(weight, type, format, n(s.out_channels), n(s.in_channels / p.groups),
                                     n(s.kernel_height), n(s.kernel_width)),
          "cudnnSetFilter4dDescriptor", device_);
    check(cudnnSetConvolution2dDescriptor(convolution, n(p.padding), n(p.padding), n(p.stride), n(p.stride),
                                          1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor", device_);
    check(cudnnSetConvolutionGroupCount(convolution, n(p.groups)), "cudnnSetConvolutionGroupCount", device_);
    // FMA: no TF32 behind a float32 product.
    set_math(p.dtype == DType::float32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
  }

  void choose(const CudnnConvolution& p, cudnnHandle_t handle) {
    int count = 0;
    const auto take = [&](const auto* performance, auto& algorithm) {
      if (!performance) return;
      usable = true;
      algorithm = performance->algo;
      workspace_bytes = performance->memory;
      if (p.dtype != DType::float32) set_math(performance->mathType);
    };
    switch (p.pass) {
      case CudnnPass::forward: {
        std::array<cudnnConvolutionFwdAlgoPerf_t, CUDNN_CONVOLUTION_FWD_ALGO_COUNT> found;
        check(cudnnGetConvolutionForwardAlgorithm_v7(handle, x, weight, convolution, y,
                                                     static_cast<int>(found.size()), &count, found.data()),
              "cudnnGetConvolutionForwardAlgorithm_v7", device_);
        return take(chosen(found.data(), count, p), forward);
      }
      case CudnnPass::backward_input: {
        std::array<cudnnConvolutionBwdDataAlgoPerf_t, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT> found;
        check(cudnnGetConvolutionBackwardDataAlgorithm_v7(
                  handle, weight, y, convolution, x, static_cast<int>(found.size()), &count, found.data()),
              "cudnnGetConvolutionBackwardDataAlgorithm_v7", device_);
        return take(chosen(found.data(), count, p), backward_input);
      }
      case CudnnPass::backward_weight: {
        std::array<cudnnConvolutionBwdFilterAlgoPerf_t, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT> found;
        check(cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                  handle, x, y, convolution, weight, static_cast<int>(found.size()), &count, found.data()),
              "cudnnGetConvolutionBackwardFilterAlgorithm_v7", device_);
        return take(chosen(found.data(), count, p), backward_weight);
      }
    }
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
  std::uint64_t hash = 0;
  for (const std::int64_t part : parts_of(problem))
    hash = mix_bits(hash + static_cast<std::uint64_t>(part) + 0x9e3779b97f4a7c15u);
  return hash;
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
  const ConvolutionSizes& s = problem.sizes;
  throw FailureError(
      "cuDNN on cuda:{} has no reproducible algorithm for a convolution of [{}, {}, {}, {}] by [{}, {}, {}, "
      "{}] "
      "of {}; another batch or another number of channels may have one",
      device_, s.images, s.in_channels, s.height, s.width, s.out_channels, s.in_channels / problem.groups,
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
