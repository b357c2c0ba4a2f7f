// The devices, versions and errors of the emulated CUDA runtime.
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "counting.h"

namespace lockstep::emulated_gpu {
namespace {

/// Of the last call of this thread that failed, until it asks: a launch reports what is left here.
thread_local cudaError_t last_error = cudaSuccess;

constexpr int devices = 2;
thread_local int current = 0;

/// Those that the program sees, in its order: named in CUDA_VISIBLE_DEVICES up to the first that is not
/// there.
const std::vector<int>& visible() {
  static const std::vector<int> found = [] {
    const char* names = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!names) names = "0,1";
    std::vector<int> seen;
    for (char* end = nullptr; *names; names = *end ? end + 1 : end) {
      const long number = std::strtol(names, &end, 10);
      if (end == names || (*end && *end != ',') || number < 0 || number >= devices) break;
      seen.push_back(static_cast<int>(number));
    }
    return seen;
  }();
  return found;
}

bool is_there(int device) { return device >= 0 && device < static_cast<int>(visible().size()); }

/// Few, so that grids as large as the device are small.
int multiprocessors() { return counting().on() ? Counting::multiprocessors : 2; }
constexpr int minor = 0;

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* const found = std::find_if(std::begin(error_texts), std::end(error_texts),
                                         [&](const ErrorText& one) { return one.error == error; });
  return found == std::end(error_texts) ? unknown : *found;
}

}  // namespace

Faults& faults() {
  static Faults wanted;
  return wanted;
}

Counts& counts() {
  static Counts made;
  return made;
}

cudaError_t failed(cudaError_t error) { return last_error = error; }

int current_device() { return current; }
WithDevice::WithDevice(int device) : before(current) { current = device; }
WithDevice::~WithDevice() { current = before; }

void refuse(const char* why) {
  std::fprintf(stderr, "emulated GPU: %s\n", why);
  std::abort();
}

}  // namespace lockstep::emulated_gpu

using namespace lockstep::emulated_gpu;

extern "C" {

cudaError_t cudaGetLastError() {
  if (faults().broken != cudaSuccess) return faults().broken;
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return faults().broken == cudaSuccess ? last_error : faults().broken; }
const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = faults().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (faults().devices != cudaSuccess) return failed(faults().devices);
  *count = static_cast<int>(visible().size());
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (!is_there(device)) return failed(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_there(device)) return failed(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->totalGlobalMem = faults().free_bytes;
  properties->major = faults().major;
  properties->minor = minor;
  properties->multiProcessorCount = multiprocessors();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_there(device)) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors();
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = faults().major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = minor;
      return cudaSuccess;
    default:
      return failed(cudaErrorNotSupported);
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  if (!is_there(device)) return failed(cudaErrorInvalidDevice);
  std::snprintf(address, static_cast<std::size_t>(length), "0000:%02x:00.0",
                visible()[static_cast<std::size_t>(device)]);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return failed(cudaErrorInvalidValue);
  return allow_shared(function, value);
}

}  // extern "C"
