// Global average pooling and nearest upsampling.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/image.h"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

/// A warp sums the places of one channel of one image, in float64 as the CPU does; y: [images, channels].
template <class T>
__global__ void __launch_bounds__(256) average_runs(Image image, const T* x, T* y) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t runs = image.images * image.channels;
  for (std::int64_t run = global_thread() / 32; run < runs; run += global_threads() / 32) {
    double sum = 0;
    for (std::int64_t place = lane; place < image.places; place += 32)
      sum += static_cast<double>(to_float(x[run * image.places + place]));
    sum = warp_sum(sum);
    if (lane == 0) y[run] = rounded<T>(sum / static_cast<double>(image.places));
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
    for (std::int64_t place = 0; place < image.places; ++place)
      sum += static_cast<double>(to_float(x[(number * image.places + place) * image.channels + channel]));
    y[run] = rounded<T>(sum / static_cast<double>(image.places));
  }
};

template <class T>
struct SpreadAverage {
  Image image;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t run = image.channels_last
                                 ? i / (image.channels * image.places) * image.channels + i % image.channels
                                 : i / image.places;
    dx[i] = rounded<T>(to_float(dy[run]) / static_cast<float>(image.places));
  }
};

/// Lanes: elements that are together at a place (1, or the channels). Rows are those of all runs, and the
/// width is the small side's.
template <class T>
struct Upsample {
  std::int64_t lanes, width;
  int scale;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t lane = i % lanes, at = i / lanes, column = at % (width * scale),
                       row = at / (width * scale);
    y[i] = x[((row / scale) * width + column / scale) * lanes + lane];
  }
};

template <class T>
struct UpsampleBackward {
  std::int64_t lanes, width;
  int scale;
  const T* dy;
  T* dx;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t lane = i % lanes, at = i / lanes, column = at % width, row = at / width;
    float sum = 0;
    for (int h = 0; h < scale; ++h) {
      for (int w = 0; w < scale; ++w)
        sum += to_float(dy[((row * scale + h) * width * scale + column * scale + w) * lanes + lane]);
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
                 Upsample<T>{op.x.channel_block(), op.x.size(3), op.scale, op.x.data<T>(), op.y.data<T>()});
  });
}

void upsample_nearest_backward(CudaBackend& gpu, const ops::UpsampleNearestBackward& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    for_elements(gpu.launch(), op.dx.numel(),
                 UpsampleBackward<T>{op.dx.channel_block(), op.dx.size(3), op.scale, op.dy.data<T>(),
                                     op.dx.data<T>()});
  });
}

}  // namespace

void enter_resampling(CudaBackend& gpu) {
  gpu.enter<&global_average_pool, &global_average_pool_backward, &upsample_nearest,
            &upsample_nearest_backward>();
}

}  // namespace lockstep::kernels
