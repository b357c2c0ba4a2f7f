// Max and average pooling, a thread an element. The backward gathers: an element of dx adds the windows it
// is in, in their order.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

/// Where an element of a [images, channels, height, width] activation is.
struct Place {
  std::int64_t run, row, column;  ///< run: image and channel, as the layout numbers them
};

/// Elements of a run are `step` apart.
struct Layout {
  std::int64_t channels, height, width;
  bool channels_last;

  explicit Layout(const Tensor& images)
      : channels(images.size(1)),
        height(images.size(2)),
        width(images.size(3)),
        channels_last(images.channel_block() != 1) {}

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

/// The outputs whose windows contain a place.
__device__ Range windows_over(std::int64_t place, const ops::Windows& s, std::int64_t outputs) {
  const std::int64_t padded = place + s.padding;  // >= 0
  const std::int64_t first = padded < s.kernel ? 0 : (padded - s.kernel) / s.stride + 1;
  return {first, smaller(padded / s.stride + 1, outputs)};
}

/// An element of y: the largest of its window, or their mean where nobody asks for winners.
template <class T, bool largest>
struct Pooled {
  Layout large, small;
  ops::Windows s;
  float share;
  const T* x;
  T* y;
  std::int32_t* winners;

  __device__ void operator()(std::int64_t i) const {
    const Place out = small.place_of(i);
    const Range rows = window_of(out.row, s, s.height), columns = window_of(out.column, s, s.width);
    std::int64_t winner = rows.begin * s.width + columns.begin;
    float result = largest ? to_float(x[large.offset_of(out.run, rows.begin, columns.begin)]) : 0.0f;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const float here = to_float(x[large.offset_of(out.run, row, column)]);
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
    const Place at = large.place_of(i);
    const auto mine = static_cast<std::int32_t>(at.row * s.width + at.column);
    const Range rows = windows_over(at.row, s, s.out_height),
                columns = windows_over(at.column, s, s.out_width);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const std::int64_t out = small.offset_of(at.run, row, column);
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

}  // namespace

void enter_pooling(CudaBackend& gpu) {
  gpu.enter<&forward<ops::MaxPool>, &backward<ops::MaxPoolBackward>, &forward<ops::AveragePool>,
            &backward<ops::AveragePoolBackward>>();
}

}  // namespace lockstep::kernels
