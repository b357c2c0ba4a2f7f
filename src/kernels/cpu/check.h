// The elements of arguments that lie on the CPU.
#pragma once

#include "kernels/check.h"

namespace lockstep::kernels {

/// The elements of `tensor`, in whatever layout.
template <class T>
T* elements(const char* operation, const char* name, const Tensor& tensor) {
  if (!tensor) throw UsageError("{}: {} is missing", operation, name);
  if (tensor.dtype() == dtype_of<T> && tensor.device() == Device::cpu()) return static_cast<T*>(tensor.raw());
  throw UsageError("{} on the CPU: {} is {} on {}; only {} on cpu is built", operation, name,
                   to_string(tensor.dtype()), to_string(tensor.device()), to_string(dtype_of<T>));
}

inline float* floats(const char* operation, const char* name, const Tensor& tensor) {
  return elements<float>(operation, name, tensor);
}

inline float* plain_floats(const char* operation, const char* name, const Tensor& tensor) {
  require_plain(operation, name, tensor);
  return elements<float>(operation, name, tensor);
}

}  // namespace lockstep::kernels
