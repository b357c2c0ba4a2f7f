// Checks of arguments that kernels share. `operation` and `name` are literals: nothing is built unless a
// check fails.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

inline void require_shape(const char* operation, const char* name, const Tensor& tensor, const Shape& shape) {
  if (tensor.shape() == shape) return;
  throw UsageError("{}: {} has shape {}, not {}", operation, name, to_string(tensor.shape()),
                   to_string(shape));
}

inline void require_plain(const char* operation, const char* name, const Tensor& tensor) {
  if (tensor.channel_block() == 1) return;
  throw UsageError("{}: {} is stored in channel blocks of {}; it must be plain", operation, name,
                   tensor.channel_block());
}

/// Equal shapes and equal layouts.
inline void require_alike(const char* operation, const char* name, const Tensor& tensor,
                          const Tensor& other) {
  require_shape(operation, name, tensor, other.shape());
  if (tensor.channel_block() == other.channel_block()) return;
  throw UsageError("{}: {} is stored in channel blocks of {}, not {}", operation, name,
                   tensor.channel_block(), other.channel_block());
}

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
