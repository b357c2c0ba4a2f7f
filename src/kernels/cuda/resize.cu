// Bilinear resizing: a thread an element of what is made, so that every sum has one order.
#include "lockstep/ops/resize.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {
namespace {

/// An element of images [runs, height, width, lanes]. Lanes: elements that are together at a place (1, or the
/// channels).
struct Place {
  std::int64_t run, row, column, lane;

  __device__ Place(std::int64_t element, std::int64_t height, std::int64_t width, std::int64_t lanes)
      : run(element / lanes / width / height),
        row(element / lanes / width % height),
        column(element / lanes % width),
        lane(element % lanes) {}
};

template <class T>
struct Resized {
  std::int64_t lanes;
  ops::Resizing down, across;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const Place place(i, down.to, across.to, lanes);
    const ops::Neighbours rows = down.at(place.row), columns = across.at(place.column);
    const auto between = [&](std::int64_t row) {
      const T* const from = x + (place.run * down.from + row) * across.from * lanes + place.lane;
      return (1 - columns.share) * to_float(from[columns.first * lanes]) +
             columns.share * to_float(from[columns.second * lanes]);
    };
    y[i] = rounded<T>((1 - rows.share) * between(rows.first) + rows.share * between(rows.second));
  }
};

template <class T>
struct ResizedBackward {
  std::int64_t lanes;
  ops::Resizing down, across;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const Place place(i, down.from, across.from, lanes);
    const ops::Resizing::Range rows = down.around(place.row), columns = across.around(place.column);
    float sum = 0;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const float of_row = down.at(row).of(place.row);
      const T* const from = dy + (place.run * down.to + row) * across.to * lanes + place.lane;
      float along = 0;
      for (std::int64_t column = columns.begin; column < columns.end; ++column)
        along += across.at(column).of(place.column) * to_float(from[column * lanes]);
      sum += of_row * along;
    }
    dx[i] = rounded<T>(sum);
  }
};

void resize_bilinear(CudaBackend& gpu, const ops::ResizeBilinear& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.x, [&]<class T>(T) {
    for_elements(gpu.launch(), op.y.numel(),
                 Resized<T>{op.x.channel_block(), sizes.height, sizes.width, op.x.data<T>(), op.y.data<T>()});
  });
}

void resize_bilinear_backward(CudaBackend& gpu, const ops::ResizeBilinearBackward& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.dy, [&]<class T>(T) {
    for_elements(gpu.launch(), op.dx.numel(),
                 ResizedBackward<T>{op.dy.channel_block(), sizes.height, sizes.width, op.dy.data<T>(),
                                    op.dx.data<T>()});
  });
}

}  // namespace

void enter_resize(CudaBackend& gpu) { gpu.enter<&resize_bilinear, &resize_bilinear_backward>(); }

}  // namespace lockstep::kernels
