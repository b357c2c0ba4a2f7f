// Checks of operands that operations share. `operation` and `name` are literals: nothing is
// built unless a check fails.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::ops {

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

inline void require_block(const char* operation, const char* name, const Tensor& tensor,
                          const Tensor& other) {
  if (tensor.channel_block() == other.channel_block()) return;
  throw UsageError("{}: {} is stored in channel blocks of {}, not {}", operation, name,
                   tensor.channel_block(), other.channel_block());
}

/// Equal shapes and equal layouts.
inline void require_alike(const char* operation, const char* name, const Tensor& tensor,
                          const Tensor& other) {
  require_shape(operation, name, tensor, other.shape());
  require_block(operation, name, tensor, other);
}

/// Equal shapes, layouts and types.
inline void require_same(const char* operation, const char* name, const Tensor& tensor, const Tensor& other) {
  require_alike(operation, name, tensor, other);
  if (tensor.dtype() == other.dtype()) return;
  throw UsageError("{}: {} is {}, not {}", operation, name, to_string(tensor.dtype()),
                   to_string(other.dtype()));
}

/// The product of all extents except the last; not a quotient, because rows may have width 0.
inline std::int64_t row_count(const Shape& shape) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < shape.rank(); ++d) rows *= shape[d];
  return rows;
}

/// Whether `from` broadcasts to `to` by NumPy's rules.
inline bool broadcasts_to(const Shape& from, const Shape& to) {
  const int missing = to.rank() - from.rank();
  bool fits = missing >= 0;
  for (int d = 0; fits && d < from.rank(); ++d) fits = from[d] == 1 || from[d] == to[d + missing];
  return fits;
}

inline void require_numel(const char* operation, const char* name, const Tensor& tensor, std::int64_t count) {
  if (tensor.numel() == count) return;
  throw UsageError("{}: {} has shape {}, not {} elements", operation, name, to_string(tensor.shape()), count);
}

/// UsageError unless the shape is that of images or of volumes, [N, C, D, H, W].
inline void require_images(const char* operation, const char* name, const Tensor& tensor) {
  if (tensor.shape().rank() == 4 || tensor.shape().rank() == 5) return;
  throw UsageError("{}: {} has shape {}, not [N, C, H, W] or [N, C, D, H, W]", operation, name,
                   to_string(tensor.shape()));
}

/// UsageError unless it is that of images, volumes, or [N, C], whose rows are the positions of one image.
inline void require_channels(const char* operation, const char* name, const Tensor& tensor) {
  if (tensor.shape().rank() == 2) return;
  if (tensor.shape().rank() == 4 || tensor.shape().rank() == 5) return;
  throw UsageError("{}: {} has shape {}, not [N, C, H, W], [N, C, D, H, W] or [N, C]", operation, name,
                   to_string(tensor.shape()));
}

}  // namespace lockstep::ops
