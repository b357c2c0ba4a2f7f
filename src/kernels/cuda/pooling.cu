// Max, average and global average pooling; nearest and bilinear resizing: a thread an element of what is
// made, so that every sum has one order. The backward of a pooling gathers: an element of dx adds the windows
// it is in, in their order.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

/// Where an element of images [runs, height, width, lanes] is. Lanes: elements that are together at a pixel
/// (1, or the channels).
struct Position {
  std::int64_t run, row, column, lane;
};

struct Layout {
  std::int64_t height, width, lanes;

  explicit Layout(const Tensor& images)
      : height(images.size(2)), width(images.size(3)), lanes(images.channel_block()) {}

  __device__ Position position_of(std::int64_t element) const {
    const std::int64_t pixel = element / lanes, line = pixel / width;
    return {line / height, line % height, pixel % width, element % lanes};
  }

  __device__ std::int64_t offset_of(const Position& at) const {
    return ((at.run * height + at.row) * width + at.column) * lanes + at.lane;
  }
};

/// Places [begin, end) along one side.
struct Range {
  std::int64_t begin, end;
};

__device__ std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// What the window of an output covers of a side.
__device__ Range window_of(std::int64_t output, const ops::Windows& s, std::int64_t side) {
  const std::int64_t first = output * s.stride - s.padding;
  return {first > 0 ? first : 0, smaller(first + s.kernel, side)};
}

/// The outputs whose windows contain a position.
__device__ Range windows_over(std::int64_t position, const ops::Windows& s, std::int64_t outputs) {
  const std::int64_t padded = position + s.padding;  // >= 0
  const std::int64_t first = padded < s.kernel ? 0 : (padded - s.kernel) / s.stride + 1;
  return {first, smaller(padded / s.stride + 1, outputs)};
}

/// An element of y: the largest of its window, or their mean where no winners are kept.
template <class T, bool largest>
struct Pooled {
  Layout large, small;
  ops::Windows s;
  float share;
  const T* x;
  T* y;
  std::int32_t* winners;

  __device__ void operator()(std::int64_t i) const {
    const Position out = small.position_of(i);
    const Range rows = window_of(out.row, s, s.height), columns = window_of(out.column, s, s.width);
    std::int64_t winner = rows.begin * s.width + columns.begin;
    float result =
        largest ? to_float(x[large.offset_of({out.run, rows.begin, columns.begin, out.lane})]) : 0.0f;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const float here = to_float(x[large.offset_of({out.run, row, column, out.lane})]);
        if constexpr (!largest) {
          result += here;
        } else if (here > result || here != here) {  // not a number wins
          result = here;
          winner = row * s.width + column;
        }
      }
    }
    y[i] = rounded<T>(largest ? result : result * share);
    if constexpr (largest) winners[i] = static_cast<std::int32_t>(winner);
  }
};

/// An element of dx.
template <class T, bool largest>
struct Gathered {
  Layout large, small;
  ops::Windows s;
  float share;
  const T* dy;
  T* dx;
  const std::int32_t* winners;

  __device__ void operator()(std::int64_t i) const {
    const Position at = large.position_of(i);
    const auto mine = static_cast<std::int32_t>(at.row * s.width + at.column);
    const Range rows = windows_over(at.row, s, s.out_height),
                columns = windows_over(at.column, s, s.out_width);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const std::int64_t out = small.offset_of({at.run, row, column, at.lane});
        if constexpr (!largest) {
          sum += to_float(dy[out]) * share;
        } else if (winners[out] == mine) {
          sum += to_float(dy[out]);
        }
      }
    }
    dx[i] = rounded<T>(sum);
  }
};

/// Of all elements of `to`, the large or the small side.
template <template <class, bool> class Element, class Op>
void pool(CudaBackend& gpu, const Op& op, const Tensor& large, const Tensor& small, const Tensor& from,
          const Tensor& to) {
  constexpr bool largest = requires(const Op& pooling) { pooling.winners; };
  const ops::Windows windows = op.windows();
  const float share = 1.0f / static_cast<float>(windows.kernel * windows.kernel);
  std::int32_t* winners = nullptr;
  if constexpr (largest) winners = op.winners.template data<std::int32_t>();
  by_type_of(from, [&]<class T>(T) {
    for_elements(gpu.launch(), to.numel(),
                 Element<T, largest>{Layout(large), Layout(small), windows, share, from.data<T>(),
                                     to.data<T>(), winners});
  });
}

template <class Op>
void forward(CudaBackend& gpu, const Op& op) {
  pool<Pooled>(gpu, op, op.x, op.y, op.x, op.y);
}

template <class Op>
void backward(CudaBackend& gpu, const Op& op) {
  pool<Gathered>(gpu, op, op.dx, op.dy, op.dy, op.dx);
}

/// A warp sums the positions of one channel of one image, in float64 as the CPU does; y: [images, channels].
template <class T>
__global__ void __launch_bounds__(256) average_runs(Image image, const T* x, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t runs = image.images * image.channels;
  for (std::int64_t run = global_thread() / 32; run < runs; run += global_threads() / 32) {
    double sum = 0;
    for (std::int64_t position = lane; position < image.positions; position += 32)
      sum += static_cast<double>(to_float(x[run * image.positions + position]));
    sum = warp_sum(sum);
    if (lane == 0) y[run] = rounded<T>(sum / static_cast<double>(image.positions));
  }
}

/// Channels last: a thread a channel of an image, so that neighbours read neighbours.
template <class T>
struct AverageColumns {
  Image image;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t run) const {
    const std::int64_t number = run / image.channels, channel = run % image.channels;
    double sum = 0;
    for (std::int64_t position = 0; position < image.positions; ++position)
      sum +=
          static_cast<double>(to_float(x[(number * image.positions + position) * image.channels + channel]));
    y[run] = rounded<T>(sum / static_cast<double>(image.positions));
  }
};

template <class T>
struct SpreadAverage {
  Image image;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t run =
        image.channels_last ? i / (image.channels * image.positions) * image.channels + i % image.channels
                            : i / image.positions;
    dx[i] = rounded<T>(to_float(dy[run]) / static_cast<float>(image.positions));
  }
};

template <class T>
struct Upsample {
  Layout small, large;
  int scale;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const Position at = large.position_of(i);
    y[i] = x[small.offset_of({at.run, at.row / scale, at.column / scale, at.lane})];
  }
};

template <class T>
struct UpsampleBackward {
  Layout small, large;
  int scale;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const Position at = small.position_of(i);
    float sum = 0;
    for (int h = 0; h < scale; ++h) {
      for (int w = 0; w < scale; ++w)
        sum += to_float(dy[large.offset_of({at.run, at.row * scale + h, at.column * scale + w, at.lane})]);
    }
    dx[i] = rounded<T>(sum);
  }
};

void global_average_pool(CudaBackend& gpu, const ops::GlobalAveragePool& op) {
  const Launch on = gpu.launch();
  const Image image = image_of(op.x);
  const std::int64_t runs = image.images * image.channels;
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    if (image.channels_last) {
      for_elements(on, runs, AverageColumns<T>{image, x, y});
    } else if (runs > 0) {
      average_runs<<<grid_for(runs * 32, 256, on), 256, 0, on.stream>>>(image, x, y);
    }
  });
}

void global_average_pool_backward(CudaBackend& gpu, const ops::GlobalAveragePoolBackward& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    for_elements(gpu.launch(), op.dx.numel(),
                 SpreadAverage<T>{image_of(op.dx), op.dy.data<T>(), op.dx.data<T>()});
  });
}

void upsample_nearest(CudaBackend& gpu, const ops::UpsampleNearest& op) {
  by_type_of(op.x, [&]<class T>(T) {
    for_elements(gpu.launch(), op.y.numel(),
                 Upsample<T>{Layout(op.x), Layout(op.y), op.scale, op.x.data<T>(), op.y.data<T>()});
  });
}

void upsample_nearest_backward(CudaBackend& gpu, const ops::UpsampleNearestBackward& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    for_elements(
        gpu.launch(), op.dx.numel(),
        UpsampleBackward<T>{Layout(op.dx), Layout(op.dy), op.scale, op.dy.data<T>(), op.dx.data<T>()});
  });
}

template <class T>
struct Resized {
  Layout from, to;
  ops::Resizing down, across;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const Position at = to.position_of(i);
    const ops::Neighbours rows = down.at(at.row), columns = across.at(at.column);
    const auto between = [&](std::int64_t row) {
      const auto value = [&](std::int64_t column) {
        return to_float(x[from.offset_of({at.run, row, column, at.lane})]);
      };
      return (1 - columns.share) * value(columns.first) + columns.share * value(columns.second);
    };
    y[i] = rounded<T>((1 - rows.share) * between(rows.first) + rows.share * between(rows.second));
  }
};

template <class T>
struct ResizedBackward {
  Layout from, to;
  ops::Resizing down, across;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const Position at = from.position_of(i);
    const ops::Resizing::Range rows = down.around(at.row), columns = across.around(at.column);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const float of_row = down.at(row).of(at.row);
      float along = 0;
      for (std::int64_t column = columns.begin; column < columns.end; ++column)
        along += across.at(column).of(at.column) * to_float(dy[to.offset_of({at.run, row, column, at.lane})]);
      sum += of_row * along;
    }
    dx[i] = rounded<T>(sum);
  }
};

void resize_bilinear(CudaBackend& gpu, const ops::ResizeBilinear& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.x, [&]<class T>(T) {
    for_elements(
        gpu.launch(), op.y.numel(),
        Resized<T>{Layout(op.x), Layout(op.y), sizes.height, sizes.width, op.x.data<T>(), op.y.data<T>()});
  });
}

void resize_bilinear_backward(CudaBackend& gpu, const ops::ResizeBilinearBackward& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.dy, [&]<class T>(T) {
    for_elements(gpu.launch(), op.dx.numel(),
                 ResizedBackward<T>{Layout(op.dx), Layout(op.dy), sizes.height, sizes.width, op.dy.data<T>(),
                                    op.dx.data<T>()});
  });
}

}  // namespace

void enter_pooling(CudaBackend& gpu) {
  gpu.enter<&forward<ops::MaxPool>, &backward<ops::MaxPoolBackward>, &forward<ops::AveragePool>,
            &backward<ops::AveragePoolBackward>>();
  gpu.enter<&global_average_pool, &global_average_pool_backward, &upsample_nearest,
            &upsample_nearest_backward>();
  gpu.enter<&resize_bilinear, &resize_bilinear_backward>();
}

}  // namespace lockstep::kernels
