// What the shapes of an operation's arguments mean, checked, for the kernels of all devices.
#pragma once

#include <algorithm>

#include "kernels/check.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

struct LinearSizes {
  std::int64_t rows, in, out;
};

/// Checks inner: [..., in], outer: [..., out] of as many rows, weight: [out, in].
inline LinearSizes linear_sizes(const char* operation, const char* inner_name, const Tensor& inner,
                                const char* outer_name, const Tensor& outer, const Tensor& weight) {
  if (weight.shape().rank() != 2) {
    throw UsageError("{}: the weight has shape {}, not [out, in]", operation, to_string(weight.shape()));
  }
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const auto rows_of = [operation](const char* name, const Tensor& tensor, std::int64_t width) {
    if (tensor.shape().rank() >= 1 && tensor.size(-1) == width) {
      std::int64_t rows = 1;
      for (int d = 0; d + 1 < tensor.shape().rank(); ++d) rows *= tensor.size(d);
      return rows;
    }
    throw UsageError("{}: {} has shape {}, whose last dimension is not the weight's {}", operation, name,
                     to_string(tensor.shape()), width);
  };
  const std::int64_t rows = rows_of(inner_name, inner, in), outer_rows = rows_of(outer_name, outer, out);
  if (rows != outer_rows) {
    throw UsageError("{}: {} {} and {} {} differ in their rows", operation, inner_name,
                     to_string(inner.shape()), outer_name, to_string(outer.shape()));
  }
  return {rows, in, out};
}

/// A tensor as rows of its last dimension.
struct Rows {
  std::int64_t count, width;
};

inline Rows rows_of(const char* operation, const Tensor& x) {
  if (x.shape().rank() == 0) throw UsageError("{}: x is a scalar; it needs a last dimension", operation);
  const std::int64_t width = x.size(-1);
  std::int64_t count = 1;
  for (int d = 0; d + 1 < x.shape().rank(); ++d) count *= x.size(d);
  return {count, width};
}

/// How often `row` fits into x.
inline std::int64_t repetitions(const char* operation, const Tensor& x, const Tensor& row) {
  const std::int64_t width = row.numel();
  if (width == 0 ? x.numel() == 0 : x.numel() % width == 0) return width == 0 ? 0 : x.numel() / width;
  throw UsageError("{}: x {} is not made of rows of {} elements", operation, to_string(x.shape()), width);
}

struct GroupSizes {
  std::int64_t images, channels, groups, channels_per_group, places;

  std::int64_t group_elements() const { return channels_per_group * places; }
};

inline GroupSizes group_sizes(const char* operation, const Tensor& x, int groups, const Tensor& weight,
                              const Tensor& mean, const Tensor& inv_std) {
  if (x.shape().rank() != 4)
    throw UsageError("{}: x has shape {}, not [N, C, H, W]", operation, to_string(x.shape()));
  const std::int64_t channels = x.size(1);
  if (groups < 1 || channels % groups != 0) {
    throw UsageError("{}: {} channels do not divide into {} groups", operation, channels, groups);
  }
  require_shape(operation, "weight", weight, {channels});
  require_shape(operation, "mean", mean, {x.size(0), groups});
  require_shape(operation, "inv_std", inv_std, {x.size(0), groups});
  return {x.size(0), channels, groups, channels / groups, x.size(2) * x.size(3)};
}

struct AttentionSizes {
  std::int64_t batch, time, heads, width;
  bool causal;
};

/// y: [batch, time, channels]; saved has the shape that the backend asks for.
inline AttentionSizes attention_sizes(const char* operation, const Tensor& y, int heads, bool causal,
                                      const Tensor& saved, const Backend& backend) {
  if (y.shape().rank() != 3 || heads < 1 || y.size(2) % heads != 0) {
    throw UsageError("{}: {} heads do not divide the channels of {} [batch, time, channels]", operation,
                     heads, to_string(y.shape()));
  }
  const AttentionSizes sizes{y.size(0), y.size(1), heads, y.size(2) / heads, causal};
  require_shape(operation, "saved", saved, backend.attention_saved_shape(sizes.batch, heads, sizes.time));
  return sizes;
}

inline void require_heads(const char* operation, const char* name, const Columns& columns,
                          const AttentionSizes& sizes) {
  const Tensor& matrix = columns.matrix;
  if (matrix.shape().rank() != 3 || matrix.size(0) != sizes.batch || matrix.size(1) != sizes.time ||
      columns.first < 0 || columns.count != sizes.heads * sizes.width ||
      columns.first + columns.count > matrix.size(2)) {
    throw UsageError("{}: {} is columns [{}, {}) of {}, not {} columns of a matrix [{}, {}, *]", operation,
                     name, columns.first, columns.first + columns.count, to_string(matrix.shape()),
                     sizes.heads * sizes.width, sizes.batch, sizes.time);
  }
}

struct ConvolutionSizes {
  std::int64_t images = 0, in_channels = 0, height = 0, width = 0;
  std::int64_t out_channels = 0, out_height = 0, out_width = 0;
  std::int64_t kernel_height = 0, kernel_width = 0;
};

/// Checks every shape. x, weight, y or their gradients.
inline ConvolutionSizes convolution_sizes(const char* operation, const Tensor& x, const Tensor& weight,
                                          const Convolution& geometry, const char* y_name, const Tensor& y) {
  const auto [stride, padding, groups] = geometry;
  if (x.shape().rank() != 4 || weight.shape().rank() != 4) {
    throw UsageError(
        "{}: images have shape {} and weights {}; they must be [N, C, H, W] and [O, C / groups, kh, kw]",
        operation, to_string(x.shape()), to_string(weight.shape()));
  }
  require_plain(operation, "weight", weight);
  if (stride < 1 || padding < 0 || groups < 1) {
    throw UsageError(
        "{}: stride {}, padding {}, groups {}: stride and groups must be at least 1, padding at least 0",
        operation, stride, padding, groups);
  }
  ConvolutionSizes sizes;
  sizes.images = x.size(0);
  sizes.in_channels = x.size(1);
  sizes.height = x.size(2);
  sizes.width = x.size(3);
  sizes.out_channels = weight.size(0);
  sizes.kernel_height = weight.size(2);
  sizes.kernel_width = weight.size(3);
  if (weight.numel() == 0 || sizes.in_channels != weight.size(1) * groups ||
      sizes.out_channels % groups != 0) {
    throw UsageError("{}: weights of shape {} in {} groups do not fit images of shape {}", operation,
                     to_string(weight.shape()), groups, to_string(x.shape()));
  }
  if (sizes.height < 1 || sizes.width < 1 || sizes.height + 2 * padding < sizes.kernel_height ||
      sizes.width + 2 * padding < sizes.kernel_width) {
    throw UsageError("{}: a kernel of {} x {} does not fit in images of shape {} with padding {}", operation,
                     sizes.kernel_height, sizes.kernel_width, to_string(x.shape()), padding);
  }
  sizes.out_height = (sizes.height + 2 * padding - sizes.kernel_height) / stride + 1;
  sizes.out_width = (sizes.width + 2 * padding - sizes.kernel_width) / stride + 1;
  require_shape(operation, y_name, y, {sizes.images, sizes.out_channels, sizes.out_height, sizes.out_width});
  return sizes;
}

/// The windows of a pooling.
struct Windows {
  std::int64_t height, width;          // of the large side
  std::int64_t out_height, out_width;  // of the small side
  std::int64_t kernel, stride, padding;

  /// body(output place, first row, end row, first column, end column) inside the image.
  template <class Body>
  void for_each(const Body& body) const {
    for (std::int64_t oh = 0; oh < out_height; ++oh) {
      const std::int64_t top = oh * stride - padding;
      for (std::int64_t ow = 0; ow < out_width; ++ow) {
        const std::int64_t left = ow * stride - padding;
        body(oh * out_width + ow, std::max<std::int64_t>(top, 0), std::min(top + kernel, height),
             std::max<std::int64_t>(left, 0), std::min(left + kernel, width));
      }
    }
  }
};

/// Checks the geometry, and that `small` is what it makes of `large`.
inline Windows windows_of(const char* operation, const Tensor& large, const char* small_name,
                          const Tensor& small, const Pool& geometry) {
  const auto [kernel, stride, padding] = geometry;
  if (kernel < 1 || stride < 1 || padding < 0 || 2 * padding > kernel) {
    throw UsageError(
        "{}: kernel {}, stride {}, padding {}: kernel and stride must be at least 1 and padding at most "
        "half the kernel",
        operation, kernel, stride, padding);
  }
  const std::int64_t height = large.size(2), width = large.size(3);
  if (height + 2 * padding < kernel || width + 2 * padding < kernel) {
    throw UsageError("{}: a kernel of {} does not fit in {} with padding {}", operation, kernel,
                     to_string(large.shape()), padding);
  }
  const Windows windows{height,
                        width,
                        (height + 2 * padding - kernel) / stride + 1,
                        (width + 2 * padding - kernel) / stride + 1,
                        kernel,
                        stride,
                        padding};
  require_shape(operation, small_name, small,
                {large.size(0), large.size(1), windows.out_height, windows.out_width});
  return windows;
}

/// `pooled` is plain [N, C] or [N, C, 1, 1] of `images`.
inline void require_pooled(const char* operation, const char* name, const Tensor& pooled,
                           const Tensor& images) {
  if (!(pooled.shape() == Shape{images.size(0), images.size(1), 1, 1})) {
    require_shape(operation, name, pooled, {images.size(0), images.size(1)});
  }
  require_plain(operation, name, pooled);
}

/// Checks that `large` is `small` upsampled, in the same channel block.
inline void require_upsampled(const char* operation, const char* name, const Tensor& large,
                              const Tensor& small, int scale) {
  if (scale < 1) throw UsageError("{}: the scale must be at least 1, not {}", operation, scale);
  require_shape(operation, name, large,
                {small.size(0), small.size(1), small.size(2) * scale, small.size(3) * scale});
  require_block(operation, name, large, small);
}

/// A table of rows and its uses.
struct Table {
  std::int64_t rows, width, uses;
};

inline Table table_of(const char* operation, const Tensor& indices, const Tensor& weight, const Tensor& y) {
  if (weight.shape().rank() != 2) {
    throw UsageError("{}: the table has shape {}, not [rows, width]", operation, to_string(weight.shape()));
  }
  const Table table{weight.size(0), weight.size(1), indices.numel()};
  if (y.shape().rank() < 1 || y.size(-1) != table.width || y.numel() != table.uses * table.width) {
    throw UsageError("{}: {} indices into rows of {} do not fill {}", operation, table.uses, table.width,
                     to_string(y.shape()));
  }
  return table;
}

}  // namespace lockstep::kernels
