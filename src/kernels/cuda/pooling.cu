// Max and average pooling, a thread an element. The backward gathers: an element of dx adds the windows it
// lies in, in their order.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

/// Each image's channels alike.
struct PoolSizes : ops::Windows {
  std::int64_t channels;
  bool channels_last;
};

/// Where an element of a [images, channels, height, width] activation is.
struct Place {
  std::int64_t run, row, column;  ///< run: image and channel, as the layout numbers them
};

/// Elements of a run lie `step` apart.
struct Layout {
  std::int64_t channels, height, width;
  bool channels_last;

  __device__ Place place_of(std::int64_t element) const {
    if (!channels_last) {
      const std::int64_t column = element % width, row = element / width % height;
      return {element / (width * height), row, column};
    }
    const std::int64_t channel = element % channels, at = element / channels;
    return {at / (width * height) * channels + channel, at / width % height, at % width};
  }
  __device__ std::int64_t offset_of(std::int64_t run, std::int64_t row, std::int64_t column) const {
    if (!channels_last) return (run * height + row) * width + column;
    const std::int64_t image = run / channels, channel = run % channels;
    return ((image * height + row) * width + column) * channels + channel;
  }
};

__device__ Layout large_side(const PoolSizes& s) { return {s.channels, s.height, s.width, s.channels_last}; }
__device__ Layout small_side(const PoolSizes& s) {
  return {s.channels, s.out_height, s.out_width, s.channels_last};
}

__device__ std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
__device__ std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// A window inside the image.
struct Window {
  std::int64_t top, bottom, left, right;
};

__device__ Window window_of(const PoolSizes& s, const Place& out) {
  const std::int64_t top = out.row * s.stride - s.padding, left = out.column * s.stride - s.padding;
  return {larger(top, 0), smaller(top + s.kernel, s.height), larger(left, 0),
          smaller(left + s.kernel, s.width)};
}

/// The outputs [begin, end) along one side whose windows contain a place.
struct Range {
  std::int64_t begin, end;
};

__device__ Range windows_over(std::int64_t place, const PoolSizes& s, std::int64_t outputs) {
  const std::int64_t padded = place + s.padding;  // >= 0
  const std::int64_t first = padded < s.kernel ? 0 : (padded - s.kernel) / s.stride + 1;
  return {first, smaller(padded / s.stride + 1, outputs)};
}

template <class T>
__global__ void __launch_bounds__(256)
    max_forward(std::int64_t count, PoolSizes s, const T* x, T* y, std::int32_t* winners) {
  const Layout from = large_side(s), to = small_side(s);
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const Place out = to.place_of(i);
    const Window window = window_of(s, out);
    std::int64_t winner = window.top * s.width + window.left;
    float best = to_float(x[from.offset_of(out.run, window.top, window.left)]);
    for (std::int64_t row = window.top; row < window.bottom; ++row) {
      for (std::int64_t column = window.left; column < window.right; ++column) {
        const float here = to_float(x[from.offset_of(out.run, row, column)]);
        if (here > best || here != here) {  // not a number wins
          best = here;
          winner = row * s.width + column;
        }
      }
    }
    y[i] = rounded<T>(best);
    winners[i] = static_cast<std::int32_t>(winner);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    max_backward(std::int64_t count, PoolSizes s, const T* dy, const std::int32_t* winners, T* dx) {
  const Layout from = small_side(s), to = large_side(s);
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const Place at = to.place_of(i);
    const auto mine = static_cast<std::int32_t>(at.row * s.width + at.column);
    const Range rows = windows_over(at.row, s, s.out_height),
                columns = windows_over(at.column, s, s.out_width);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const std::int64_t out = from.offset_of(at.run, row, column);
        if (winners[out] == mine) sum += to_float(dy[out]);
      }
    }
    dx[i] = rounded<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    average_forward(std::int64_t count, PoolSizes s, float share, const T* x, T* y) {
  const Layout from = large_side(s), to = small_side(s);
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const Place out = to.place_of(i);
    const Window window = window_of(s, out);
    float sum = 0;
    for (std::int64_t row = window.top; row < window.bottom; ++row) {
      for (std::int64_t column = window.left; column < window.right; ++column)
        sum += to_float(x[from.offset_of(out.run, row, column)]);
    }
    y[i] = rounded<T>(sum * share);
  }
}

template <class T>
__global__ void __launch_bounds__(256)
    average_backward(std::int64_t count, PoolSizes s, float share, const T* dy, T* dx) {
  const Layout from = small_side(s), to = large_side(s);
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const Place at = to.place_of(i);
    const Range rows = windows_over(at.row, s, s.out_height),
                columns = windows_over(at.column, s, s.out_width);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column)
        sum += to_float(dy[from.offset_of(at.run, row, column)]) * share;
    }
    dx[i] = rounded<T>(sum);
  }
}

float share_of(const PoolSizes& s) { return 1.0f / static_cast<float>(s.kernel * s.kernel); }

PoolSizes sizes_of(const ops::Windows& windows, const Tensor& large) {
  return {windows, large.size(1), large.channel_block() != 1};
}

void max_pool(CudaBackend& gpu, const ops::MaxPool& op) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.y.numel();
  if (count == 0) return;
  by_type_of(op.x, [&]<class T>(T) {
    max_forward<<<grid_for(count, 256, on), 256, 0, on.stream>>>(
        count, sizes_of(op.windows(), op.x), op.x.data<T>(), op.y.data<T>(), op.winners.data<std::int32_t>());
  });
}

void max_pool_backward(CudaBackend& gpu, const ops::MaxPoolBackward& op) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.dx.numel();
  if (count == 0) return;
  by_type_of(op.dy, [&]<class T>(T) {
    max_backward<<<grid_for(count, 256, on), 256, 0, on.stream>>>(
        count, sizes_of(op.windows(), op.dx), op.dy.data<T>(), op.winners.data<std::int32_t>(),
        op.dx.data<T>());
  });
}

void average_pool(CudaBackend& gpu, const ops::AveragePool& op) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.y.numel();
  if (count == 0) return;
  const PoolSizes sizes = sizes_of(op.windows(), op.x);
  by_type_of(op.x, [&]<class T>(T) {
    average_forward<<<grid_for(count, 256, on), 256, 0, on.stream>>>(count, sizes, share_of(sizes),
                                                                     op.x.data<T>(), op.y.data<T>());
  });
}

void average_pool_backward(CudaBackend& gpu, const ops::AveragePoolBackward& op) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.dx.numel();
  if (count == 0) return;
  const PoolSizes sizes = sizes_of(op.windows(), op.dx);
  by_type_of(op.dy, [&]<class T>(T) {
    average_backward<<<grid_for(count, 256, on), 256, 0, on.stream>>>(count, sizes, share_of(sizes),
                                                                      op.dy.data<T>(), op.dx.data<T>());
  });
}

}  // namespace

void enter_pooling(CudaBackend& gpu) {
  gpu.enter<&max_pool, &max_pool_backward, &average_pool, &average_pool_backward>();
}

}  // namespace lockstep::kernels
