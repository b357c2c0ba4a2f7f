// Global average pooling and nearest upsampling.
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

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
__global__ void __launch_bounds__(256) average_columns(Image image, const T* x, T* y) {
  const std::int64_t runs = image.images * image.channels;
  for (std::int64_t run = global_thread(); run < runs; run += global_threads()) {
    const std::int64_t number = run / image.channels, channel = run % image.channels;
    double sum = 0;
    for (std::int64_t place = 0; place < image.places; ++place)
      sum += static_cast<double>(to_float(x[(number * image.places + place) * image.channels + channel]));
    y[run] = rounded<T>(sum / static_cast<double>(image.places));
  }
}

template <class T>
__global__ void __launch_bounds__(256) spread_average(Image image, const T* dy, T* dx) {
  const auto places = static_cast<float>(image.places);
  for (std::int64_t i = global_thread(); i < image.elements(); i += global_threads()) {
    const std::int64_t run = image.channels_last
                                 ? i / (image.channels * image.places) * image.channels + i % image.channels
                                 : i / image.places;
    dx[i] = rounded<T>(to_float(dy[run]) / places);
  }
}

/// The element of the small side that an element of the large side copies. Lanes: elements that lie together
/// at a place (1, or the channels).
__device__ std::int64_t source_of(std::int64_t element, std::int64_t lanes, std::int64_t width, int scale) {
  const std::int64_t lane = element % lanes, at = element / lanes;
  const std::int64_t column = at % (width * scale), row = at / (width * scale);  // row: of all runs
  return ((row / scale) * width + column / scale) * lanes + lane;
}

template <class T>
__global__ void __launch_bounds__(256)
    upsample(std::int64_t count, std::int64_t lanes, std::int64_t width, int scale, const T* x, T* y) {
  for (std::int64_t i = global_thread(); i < count; i += global_threads())
    y[i] = x[source_of(i, lanes, width, scale)];
}

template <class T>
__global__ void __launch_bounds__(256) upsample_backward(std::int64_t count, std::int64_t lanes,
                                                         std::int64_t width, int scale, const T* dy, T* dx) {
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    const std::int64_t lane = i % lanes, at = i / lanes, column = at % width, row = at / width;
    float sum = 0;
    for (int h = 0; h < scale; ++h) {
      for (int w = 0; w < scale; ++w)
        sum += to_float(dy[((row * scale + h) * width * scale + column * scale + w) * lanes + lane]);
    }
    dx[i] = rounded<T>(sum);
  }
}

std::int64_t lanes_of(const Image& image) { return image.channels_last ? image.channels : 1; }

}  // namespace

void launch_global_average_pool(const Launch& on, DType dtype, const void* x, const Image& image, void* y) {
  const std::int64_t runs = image.images * image.channels;
  if (runs == 0) return;
  with_float_type<BF16>("global_average_pool", dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (image.channels_last) {
      average_columns<<<grid_for(runs, 256, on), 256, 0, on.stream>>>(image, from, to);
    } else {
      average_runs<<<grid_for(runs * 32, 256, on), 256, 0, on.stream>>>(image, from, to);
    }
  });
  check_launch("global_average_pool", on);
}

void launch_global_average_pool_backward(const Launch& on, DType dtype, const void* dy, const Image& image,
                                         void* dx) {
  const std::int64_t count = image.elements();
  if (count == 0) return;
  with_float_type<BF16>("global_average_pool_backward", dtype, [&]<class T>(T) {
    spread_average<<<grid_for(count, 256, on), 256, 0, on.stream>>>(image, static_cast<const T*>(dy),
                                                                    static_cast<T*>(dx));
  });
  check_launch("global_average_pool_backward", on);
}

void launch_upsample(const Launch& on, DType dtype, const void* x, const Image& image, std::int64_t width,
                     int scale, void* y) {
  const std::int64_t count = image.elements() * scale * scale;
  if (count == 0) return;
  with_float_type<BF16>("upsample_nearest", dtype, [&]<class T>(T) {
    upsample<<<grid_for(count, 256, on), 256, 0, on.stream>>>(count, lanes_of(image), width, scale,
                                                              static_cast<const T*>(x), static_cast<T*>(y));
  });
  check_launch("upsample_nearest", on);
}

void launch_upsample_backward(const Launch& on, DType dtype, const void* dy, const Image& image,
                              std::int64_t width, int scale, void* dx) {
  const std::int64_t count = image.elements();
  if (count == 0) return;
  with_float_type<BF16>("upsample_nearest_backward", dtype, [&]<class T>(T) {
    upsample_backward<<<grid_for(count, 256, on), 256, 0, on.stream>>>(
        count, lanes_of(image), width, scale, static_cast<const T*>(dy), static_cast<T*>(dx));
  });
  check_launch("upsample_nearest_backward", on);
}

}  // namespace lockstep::kernels
