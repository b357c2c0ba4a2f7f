#include "emulated_gpu/cudnn_status.h"

#include <utility>

#include "emulated_gpu/library_functions.h"
#include "emulated_gpu/runtime.h"

namespace lockstep::emulated_gpu {
namespace {

/// What cudnnHandle_t points to.
struct Handle {
  int device = current_device();
  cudaStream_t stream = nullptr;
};

thread_local std::string last_error;

}  // namespace

cudnnStatus_t refused(cudnnStatus_t status, std::string why) {
  last_error = std::move(why);
  return status;
}

cudaStream_t stream_of(cudnnHandle_t handle) { return reinterpret_cast<Handle*>(handle)->stream; }

cudnnStatus_t check_device(cudnnHandle_t handle) {
  if (reinterpret_cast<Handle*>(handle)->device == current_device()) return CUDNN_STATUS_SUCCESS;
  return refused(CUDNN_STATUS_EXECUTION_FAILED, "the handle is of another device than the current one");
}

std::optional<Element> element_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return Element::float32;
    case CUDNN_DATA_BFLOAT16:
      return Element::bfloat16;
    case CUDNN_DATA_INT32:
      return Element::int32;
    case CUDNN_DATA_BOOLEAN:
      return Element::boolean;
    default:
      return std::nullopt;
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (!handle) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no room for a handle");
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}

/// Its device has to be the current one until then.
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (handle && check_device(handle) != CUDNN_STATUS_SUCCESS)
    refuse("a cuDNN handle is destroyed while another device than its own is current");
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handle) return refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
  Handle& own = *reinterpret_cast<Handle*>(handle);
  if (stream && device_of(stream) != own.device)
    return refused(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "the stream is of another device than the handle");
  own.stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

std::size_t cudnnGetVersion() { return faults().cudnn_version; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (CUDNN_STATUS_CATEGORY(static_cast<int>(status))) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_?";
  }
}

void cudnnGetLastErrorString(char* message, std::size_t most) {
  if (!message || most == 0) return;
  const std::size_t length = std::min(last_error.size(), most - 1);
  std::memcpy(message, last_error.data(), length);
  message[length] = '\0';
}

}  // namespace lockstep::emulated_gpu
