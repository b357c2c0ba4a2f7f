// cuBLASLt and cuDNN under their own names, but found late: a program that was built for GPUs, too, starts
// where these libraries are not. Within this namespace the pointers hide the functions that the libraries'
// headers declare, so calls read as ever.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>

namespace lockstep::kernels {

/// Throws UsageError naming the library that cannot be loaded, or is too old. Before that no function below
/// may be called. Any number of times, by any thread.
void load_cuda_libraries();

#define LOCKSTEP_CUBLASLT_FUNCTIONS(use)                                                           \
  use(cublasLtCreate) use(cublasLtDestroy) use(cublasLtGetStatusName) use(cublasLtGetStatusString) \
      use(cublasLtMatmul) use(cublasLtMatmulAlgoGetHeuristic) use(cublasLtMatmulDescCreate)        \
          use(cublasLtMatmulDescDestroy) use(cublasLtMatmulDescSetAttribute)                       \
              use(cublasLtMatmulPreferenceCreate) use(cublasLtMatmulPreferenceDestroy)             \
                  use(cublasLtMatmulPreferenceSetAttribute) use(cublasLtMatrixLayoutCreate)        \
                      use(cublasLtMatrixLayoutDestroy) use(cublasLtMatrixLayoutSetAttribute)

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

// --- error.cpp: errors as FailureErrors that name call, device and what to do
void check(cudaError_t status, const char* call, int device);
void check(cublasStatus_t status, const char* call, int device);
void check(cudnnStatus_t status, const char* call, int device);

/// Of memory: says how much was asked for.
void check_allocation(cudaError_t status, const char* call, std::size_t bytes, int device);

}  // namespace lockstep::kernels
