// cuBLASLt and cuDNN under their own names, but loaded late: a program that is built for GPUs also starts
// where these libraries are missing. Within this namespace function pointers hide the functions that the
// libraries' headers declare, so calls look as usual.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace lockstep::kernels {

/// Throws UsageError naming the library that cannot be loaded or is too old. Must be called before any
/// function below. May be called again, by any thread.
void load_cuda_libraries();

#define LOCKSTEP_CUBLASLT_FUNCTIONS(use)                                                                   \
  use(cublasLtCreate) use(cublasLtDestroy) use(cublasLtGetStatusName) use(cublasLtGetStatusString)         \
      use(cublasLtGetVersion) use(cublasLtMatmul) use(cublasLtMatmulAlgoCheck)                             \
          use(cublasLtMatmulAlgoGetHeuristic) use(cublasLtMatmulDescCreate) use(cublasLtMatmulDescDestroy) \
              use(cublasLtMatmulDescSetAttribute) use(cublasLtMatmulPreferenceCreate)                      \
                  use(cublasLtMatmulPreferenceDestroy) use(cublasLtMatmulPreferenceSetAttribute)           \
                      use(cublasLtMatrixLayoutCreate) use(cublasLtMatrixLayoutDestroy)                     \
                          use(cublasLtMatrixLayoutSetAttribute)

#define LOCKSTEP_CUDNN_FUNCTIONS(use)                                                                        \
  use(cudnnBackendCreateDescriptor) use(cudnnBackendDestroyDescriptor) use(cudnnBackendExecute)              \
      use(cudnnBackendFinalize) use(cudnnBackendGetAttribute) use(cudnnBackendSetAttribute)                  \
          use(cudnnConvolutionBackwardData) use(cudnnConvolutionBackwardFilter) use(cudnnConvolutionForward) \
              use(cudnnCreate) use(cudnnCreateConvolutionDescriptor) use(cudnnCreateFilterDescriptor)        \
                  use(cudnnCreateTensorDescriptor) use(cudnnDestroy) use(cudnnDestroyConvolutionDescriptor)  \
                      use(cudnnDestroyFilterDescriptor) use(cudnnDestroyTensorDescriptor)                    \
                          use(cudnnGetConvolutionBackwardDataAlgorithm_v7)                                   \
                              use(cudnnGetConvolutionBackwardDataWorkspaceSize)                              \
                                  use(cudnnGetConvolutionBackwardFilterAlgorithm_v7)                         \
                                      use(cudnnGetConvolutionBackwardFilterWorkspaceSize)                    \
                                          use(cudnnGetConvolutionForwardAlgorithm_v7)                        \
                                              use(cudnnGetConvolutionForwardWorkspaceSize)                   \
                                                  use(cudnnGetErrorString) use(cudnnGetLastErrorString) use( \
                                                      cudnnGetVersion) use(cudnnSetConvolution2dDescriptor)  \
                                                      use(cudnnSetConvolutionGroupCount)                     \
                                                          use(cudnnSetConvolutionMathType)                   \
                                                              use(cudnnSetFilter4dDescriptor)                \
                                                                  use(cudnnSetStream)                        \
                                                                      use(cudnnSetTensor4dDescriptor)

#define LOCKSTEP_LATE_FUNCTION(name) extern decltype(&::name) name;
LOCKSTEP_CUBLASLT_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

/// FailureErrors that name call, device and what to do.
void check(cudaError_t status, const char* call, int device);
void check(cublasStatus_t status, const char* call, int device);
void check(cudnnStatus_t status, const char* call, int device);

/// For allocations: names the size.
void check_allocation(cudaError_t status, const char* call, std::size_t bytes, int device);

template <auto& destroy>
struct Destroy {
  template <class Object>
  void operator()(Object* object) const {
    destroy(object);
  }
};

/// Owns a handle of a library, and destroys it by the library's function.
template <class Handle, auto& destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

/// Resets `owner` to the handle from create(&handle).
template <class Owner, class Create>
void make(Owner& owner, const Create& create, const char* call, int device) {
  typename Owner::pointer handle = nullptr;
  check(create(&handle), call, device);
  owner.reset(handle);
}

}  // namespace lockstep::kernels
