// The elements of an operation's arguments that lie on a GPU, checked.
#pragma once

#include "kernels/check.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {

/// Of one operation. Every check throws UsageError naming the operation and the tensor.
struct Operands {
  const char* operation;
  Device device;

  /// Of any element type.
  void* raw(const char* name, const Tensor& tensor) const {
    if (!tensor) throw UsageError("{}: {} is missing", operation, name);
    if (!(tensor.device() == device)) {
      throw UsageError("{} on {}: {} is on {}", operation, to_string(device), name,
                       to_string(tensor.device()));
    }
    return tensor.raw();
  }
  void* of_type(const char* name, const Tensor& tensor, DType dtype) const {
    void* const data = raw(name, tensor);
    if (tensor.dtype() == dtype) return data;
    throw UsageError("{} on a GPU: {} is {}; only {} is built", operation, name, to_string(tensor.dtype()),
                     to_string(dtype));
  }
  template <class T>
  T* elements(const char* name, const Tensor& tensor) const {
    return static_cast<T*>(of_type(name, tensor, dtype_of<T>));
  }
  float* floats(const char* name, const Tensor& tensor) const { return elements<float>(name, tensor); }
  /// nullptr where there is none.
  float* optional_floats(const char* name, const Tensor& tensor) const {
    return tensor ? floats(name, tensor) : nullptr;
  }
  float* floats_of(const char* name, const Tensor& tensor, const Shape& shape) const {
    require_shape(operation, name, tensor, shape);
    return floats(name, tensor);
  }
  float* plain_floats(const char* name, const Tensor& tensor) const {
    require_plain(operation, name, tensor);
    return floats(name, tensor);
  }
  void* plain_of_type(const char* name, const Tensor& tensor, DType dtype) const {
    require_plain(operation, name, tensor);
    return of_type(name, tensor, dtype);
  }

  /// Of [N, C, H, W], plain or with the channels last, the layouts that GPUs compute in.
  Image image_of(const char* name, const Tensor& tensor) const {
    if (tensor.shape().rank() != 4) {
      throw UsageError("{}: {} has shape {}, not [N, C, H, W]", operation, name, to_string(tensor.shape()));
    }
    const std::int64_t block = tensor.channel_block(), channels = tensor.size(1);
    if (block != 1 && block != channels) {
      throw UsageError(
          "{} on a GPU: {} of shape {} is stored in channel blocks of {}; only 1 and {} are built", operation,
          name, to_string(tensor.shape()), block, channels);
    }
    return {tensor.size(0), channels, tensor.size(2) * tensor.size(3), block != 1};
  }
  /// The same, or of [N, C], whose rows are the places of one image.
  Image channels_of(const char* name, const Tensor& tensor) const {
    if (tensor.shape().rank() != 2) return image_of(name, tensor);
    return {1, tensor.size(1), tensor.size(0), true};
  }
};

}  // namespace lockstep::kernels
