// cuDNN's convolutions by descriptors: what they refuse, and the choice of algorithms.
#include "emulated_gpu/cudnn_convolution.h"

#include <array>
#include <span>

#include "emulated_gpu/counting.h"
#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"
#include "emulated_gpu/streams.h"

namespace lockstep::emulated_gpu {
namespace {

constexpr cudnnStatus_t success = CUDNN_STATUS_SUCCESS;
constexpr std::size_t too_much_bytes = std::size_t{3} << 30;

Images& own(cudnnTensorDescriptor_t descriptor) { return *reinterpret_cast<Images*>(descriptor); }
Images& own(cudnnFilterDescriptor_t descriptor) { return *reinterpret_cast<Images*>(descriptor); }
ConvolutionGeometry& own(cudnnConvolutionDescriptor_t descriptor) {
  return *reinterpret_cast<ConvolutionGeometry*>(descriptor);
}

template <class Own, class Opaque>
cudnnStatus_t create(Opaque** made) {
  if (!made) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no room for a descriptor");
  *made = reinterpret_cast<Opaque*>(new Own);
  return success;
}

template <class Own, class Opaque>
cudnnStatus_t destroy(Opaque* descriptor) {
  delete reinterpret_cast<Own*>(descriptor);
  return success;
}

cudnnStatus_t describe(Images* images, cudnnTensorFormat_t format, cudnnDataType_t type,
                       const std::array<int, 4>& extents) {
  if (!images) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  for (const int extent : extents) {
    if (extent <= 0) return refused(CUDNN_STATUS_BAD_PARAM, "an extent that is not positive");
  }
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "a format other than NCHW and NHWC");
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_BFLOAT16)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "elements other than float32 and bfloat16");
  *images = {true, format, type, extents[0], extents[1], extents[2], extents[3]};
  return success;
}

int outputs(int inputs, int padding, int kernel, int dilation, int stride) {
  return (inputs + 2 * padding - ((kernel - 1) * dilation + 1)) / stride + 1;
}

struct Algorithm {
  int number;
  bool repeats, needs_workspace, needs_too_much;
  bool only_tf32 = false;  ///< listed for float32 by default, but not there once FMA is asked for
};

/// Fastest first: what may not be taken comes before what may.
std::span<const Algorithm> algorithms(Pass pass) {
  static constexpr std::array<Algorithm, 4> forward{
      {{CUDNN_CONVOLUTION_FWD_ALGO_GEMM, true, true, false, true},
       {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true, true, true},
       {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, true, false},
       {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true, false, false}}};
  static constexpr std::array<Algorithm, 4> data{
      {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, true, true, false, true},
       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, false, false},
       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, true, true, true},
       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, true, false}}};
  static constexpr std::array<Algorithm, 4> filter{
      {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, true, true, false, true},
       {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, false, false},
       {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, true, true, true},
       {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, true, false}}};
  return pass == Pass::forward ? forward : pass == Pass::backward_data ? data : filter;
}

const Algorithm* algorithm(Pass pass, int number) {
  for (const Algorithm& one : algorithms(pass)) {
    if (one.number == number) return &one;
  }
  return nullptr;
}

/// No tensor cores: more to keep.
std::size_t workspace_bytes(const Algorithm& algorithm, cudnnMathType_t math, const Images& x,
                            const Images& y) {
  if (algorithm.needs_too_much) return too_much_bytes;
  if (!algorithm.needs_workspace) return 0;
  return x.bytes() + (math == CUDNN_FMA_MATH ? y.bytes() : 0);
}

/// One algorithm twice where tensor cores may serve, first with them.
template <class Performance>
cudnnStatus_t list(Pass pass, const Images& x, const Images& w, const ConvolutionGeometry& g, const Images& y,
                   int requested, int* count, Performance* performance) {
  if (requested < 1 || !count || !performance)
    return refused(CUDNN_STATUS_BAD_PARAM, "no room for algorithms");
  *count = 0;
  if (const cudnnStatus_t status = checked(x, w, g, y); status != success) return status;
  const bool half = x.type == CUDNN_DATA_BFLOAT16,
             built = !half || g.groups == 1 || x.format == CUDNN_TENSOR_NHWC;
  for (const Algorithm& one : algorithms(pass)) {
    for (const cudnnMathType_t math : {half ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH}) {
      if (one.only_tf32 && math != CUDNN_DEFAULT_MATH) continue;
      if (*count == requested) return success;
      Performance& made = performance[(*count)++];
      made = {};
      made.algo = static_cast<decltype(made.algo)>(one.number);
      made.status = built ? success : CUDNN_STATUS_NOT_SUPPORTED;
      made.time = built ? static_cast<float>(*count) : -1.0f;
      made.memory = workspace_bytes(one, math, x, y);
      made.determinism = one.repeats ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
      made.mathType = math;
    }
  }
  return success;
}

cudnnStatus_t size(Pass pass, int number, const Images& x, const Images& w, const ConvolutionGeometry& g,
                   const Images& y, std::size_t* bytes) {
  if (!bytes) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no room for a size");
  if (const cudnnStatus_t status = checked(x, w, g, y); status != success) return status;
  const Algorithm* const chosen = algorithm(pass, number);
  if (!chosen) return refused(CUDNN_STATUS_NOT_SUPPORTED, "an algorithm that is not listed");
  if (chosen->only_tf32 && (g.math != CUDNN_DEFAULT_MATH || x.type != CUDNN_DATA_FLOAT))
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "an algorithm that is not there in this arithmetic");
  *bytes = workspace_bytes(*chosen, g.math, x, y);
  return success;
}

const char* name_of(Pass pass) {
  return pass == Pass::forward         ? "cudnnConvolutionForward"
         : pass == Pass::backward_data ? "cudnnConvolutionBackwardData"
                                       : "cudnnConvolutionBackwardFilter";
}

cudnnStatus_t run(cudnnHandle_t handle, const ConvolutionCall& call, int number, void* workspace,
                  std::size_t bytes) {
  if (!handle || !call.made || (call.pass != Pass::forward && !call.y_data) ||
      (call.pass != Pass::backward_data && !call.x_data) ||
      (call.pass != Pass::backward_filter && !call.w_data))
    return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle, or no data");
  std::size_t needed_bytes = 0;
  const cudnnStatus_t status = size(call.pass, number, call.x, call.w, call.geometry, call.y, &needed_bytes);
  if (status != success) return status;
  if (bytes < needed_bytes || (needed_bytes > 0 && !workspace))
    return refused(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "a workspace of " + std::to_string(bytes) +
                                                                 " bytes; this algorithm needs " +
                                                                 std::to_string(needed_bytes));
  if (const cudnnStatus_t wrong = check_device(handle); wrong != success) return wrong;
  require_within_reach({call.x_data, call.w_data, call.y_data, call.made, workspace});
  enqueue(stream_of(handle), [call, workspace, needed_bytes] {
    if (counting().on())
      return counting().call(name_of(call.pass), call.x.bytes() + call.w.bytes() + call.y.bytes());
    spoil(workspace, needed_bytes);
    compute(call);
  });
  return success;
}

}  // namespace

cudnnStatus_t checked(const Images& x, const Images& w, const ConvolutionGeometry& g, const Images& y) {
  if (!x.described || !w.described || !g.described || !y.described)
    return refused(CUDNN_STATUS_BAD_PARAM, "a descriptor that describes nothing");
  if (x.type != w.type || x.type != y.type)
    return refused(CUDNN_STATUS_BAD_PARAM, "x, w and y of several types");
  if (x.format != w.format || x.format != y.format)
    return refused(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "x, w and y in several layouts");
  if (x.c != w.c * g.groups || w.n % g.groups != 0)
    return refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "x's channels are not w's, times the groups");
  if (y.n != x.n || y.c != w.n || y.d != outputs(x.d, g.padding_d, w.d, g.dilation_d, g.stride_d) ||
      y.h != outputs(x.h, g.padding_h, w.h, g.dilation_h, g.stride_h) ||
      y.w != outputs(x.w, g.padding_w, w.w, g.dilation_w, g.stride_w))
    return refused(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "y's extents are not what x and w make");
  return success;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* made) { return create<Images>(made); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) { return create<Images>(made); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* made) {
  return create<ConvolutionGeometry>(made);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  return destroy<Images>(descriptor);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  return destroy<Images>(descriptor);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor) {
  return destroy<ConvolutionGeometry>(descriptor);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return describe(&own(descriptor), format, type, {n, c, h, w});
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return describe(&own(descriptor), format, type, {k, c, h, w});
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int padding_h,
                                              int padding_w, int stride_h, int stride_w, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute_type) {
  if (!descriptor) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  if (padding_h < 0 || padding_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
    return refused(CUDNN_STATUS_BAD_PARAM, "a negative padding, or a stride or dilation below one");
  if (mode != CUDNN_CROSS_CORRELATION || compute_type != CUDNN_DATA_FLOAT)
    return refused(CUDNN_STATUS_NOT_SUPPORTED, "other than cross-correlation summed in float32");
  ConvolutionGeometry& geometry = own(descriptor);
  geometry.described = true;
  geometry.padding_h = padding_h;
  geometry.padding_w = padding_w;
  geometry.stride_h = stride_h;
  geometry.stride_w = stride_w;
  geometry.dilation_h = dilation_h;
  geometry.dilation_w = dilation_w;
  return success;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int groups) {
  if (!descriptor || groups < 1) return refused(CUDNN_STATUS_BAD_PARAM, "less than one group");
  own(descriptor).groups = groups;
  return success;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor, cudnnMathType_t math) {
  if (!descriptor) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
  own(descriptor).math = math;
  return success;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t geometry,
                                                     const cudnnTensorDescriptor_t y, const int requested,
                                                     int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
  return list(Pass::forward, own(x), own(w), own(geometry), own(y), requested, count, found);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t geometry,
                                                          const cudnnTensorDescriptor_t dx,
                                                          const int requested, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return list(Pass::backward_data, own(dx), own(w), own(geometry), own(dy), requested, count, found);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t geometry,
                                                            const cudnnFilterDescriptor_t dw,
                                                            const int requested, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return list(Pass::backward_filter, own(x), own(dw), own(geometry), own(dy), requested, count, found);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t geometry,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t number, std::size_t* bytes) {
  return size(Pass::forward, number, own(x), own(w), own(geometry), own(y), bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t geometry,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t number,
                                                           std::size_t* bytes) {
  return size(Pass::backward_data, number, own(dx), own(w), own(geometry), own(dy), bytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t geometry,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t number,
                                                             std::size_t* bytes) {
  return size(Pass::backward_filter, number, own(x), own(dw), own(geometry), own(dy), bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x, const void* x_data,
                                      const cudnnFilterDescriptor_t w, const void* w_data,
                                      const cudnnConvolutionDescriptor_t geometry,
                                      cudnnConvolutionFwdAlgo_t number, void* workspace, std::size_t bytes,
                                      const void* beta, const cudnnTensorDescriptor_t y, void* y_data) {
  return run(handle,
             {Pass::forward, own(x), own(w), own(y), own(geometry), x_data, w_data, nullptr, y_data,
              stored_at<float>(alpha, 0), stored_at<float>(beta, 0)},
             number, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w, const void* w_data,
                                           const cudnnTensorDescriptor_t dy, const void* dy_data,
                                           const cudnnConvolutionDescriptor_t geometry,
                                           cudnnConvolutionBwdDataAlgo_t number, void* workspace,
                                           std::size_t bytes, const void* beta,
                                           const cudnnTensorDescriptor_t dx, void* dx_data) {
  return run(handle,
             {Pass::backward_data, own(dx), own(w), own(dy), own(geometry), nullptr, w_data, dy_data, dx_data,
              stored_at<float>(alpha, 0), stored_at<float>(beta, 0)},
             number, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x, const void* x_data,
                                             const cudnnTensorDescriptor_t dy, const void* dy_data,
                                             const cudnnConvolutionDescriptor_t geometry,
                                             cudnnConvolutionBwdFilterAlgo_t number, void* workspace,
                                             std::size_t bytes, const void* beta,
                                             const cudnnFilterDescriptor_t dw, void* dw_data) {
  return run(handle,
             {Pass::backward_filter, own(x), own(dw), own(dy), own(geometry), x_data, nullptr, dy_data,
              dw_data, stored_at<float>(alpha, 0), stored_at<float>(beta, 0)},
             number, workspace, bytes);
}

}  // namespace lockstep::emulated_gpu
