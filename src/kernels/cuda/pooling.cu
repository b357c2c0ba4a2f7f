// Max, average and global average pooling; nearest and bilinear resizing: one thread per pack of channels of
// a result's pixel (channels first: a pack is one element), so that every sum has one order. The backward of
// a pooling gathers: an element of dx adds the windows that contain it, in their order.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/base/error.h"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

/// The position of an element of volumes [runs, depth, height, width, lanes], or of images, whose depth is 1.
/// Lanes: the adjacent elements of a pixel (1, or the channels).
struct Position {
  std::int64_t run, slice, row, column, lane;
};

struct Layout {
  std::int64_t depth, height, width, lanes;

  explicit Layout(const Tensor& images)
      : depth(images.shape().rank() == 5 ? images.size(2) : 1),
        height(images.size(-2)),
        width(images.size(-1)),
        lanes(images.channel_block()) {}

  __device__ std::int64_t offset_of(const Position& at) const {
    return (((at.run * depth + at.slice) * height + at.row) * width + at.column) * lanes + at.lane;
  }
};

/// Width elements as floats.
template <int Width>
struct Floats {
  float lane[Width];

  /// lane = f(lane, the other's lane).
  template <class T, class Function>
  __device__ void join(const Pack<T, Width>& other, const Function& f) {
    for (int l = 0; l < Width; ++l) lane[l] = f(lane[l], to_float(other.lane[l]));
  }
};

template <class T, int Width>
__device__ Pack<T, Width> rounded_pack(const Floats<Width>& from, float factor = 1) {
  Pack<T, Width> to;
  for (int l = 0; l < Width; ++l) to.lane[l] = rounded<T>(from.lane[l] * factor);
  return to;
}

/// y = element.at<Width>(each position), Width lanes at once. lines: runs times depth times height; across:
/// packs of one.
template <int Width, class T, class Element>
__global__ void __launch_bounds__(256)
    each_pixel(const __grid_constant__ Layout to, unsigned lines, unsigned across, Element element, T* y) {
  const auto height = static_cast<unsigned>(to.height), packs = static_cast<unsigned>(to.lanes / Width),
             depth = static_cast<unsigned>(to.depth);
  for (auto line = static_cast<unsigned>(first_row()); line < lines;
       line += static_cast<unsigned>(rows_apart())) {
    const unsigned above = line / height, row = line - above * height,
                   run = depth == 1 ? above : above / depth, slice = above - run * depth;
    for (auto i = static_cast<unsigned>(global_thread()); i < across;
         i += static_cast<unsigned>(global_threads())) {
      const unsigned column = i / packs;
      const Position at{run, slice, row, column, std::int64_t{i - column * packs} * Width};
      store_pack(y + to.offset_of(at), element.template at<Width>(at));
    }
  }
}

/// The same for images, in packs if channels are last. from, winners: further addresses that an element reads
/// or writes.
template <class T, class Element>
void for_pixels(CudaBackend& gpu, const Tensor& to, const Element& element, const Tensor& from,
                const std::int32_t* winners = nullptr) {
  if (to.numel() == 0) return;
  const Layout layout(to);
  const bool packs = layout.lanes % pack_width<T> == 0 && packs_at(to.raw()) && packs_at(from.raw()) &&
                     packs_at(winners, pack_width<T> * sizeof(std::int32_t));
  with_width<T>(packs, [&]<int width>(Width<width>) {
    const Launch on = gpu.launch();
    const std::int64_t across = layout.width * layout.lanes / width,
                       lines = to.stored_numel() / across / width;
    if (constexpr std::int64_t max = std::int64_t{1} << 31; lines > max || across > max)
      throw UsageError("pooling on a GPU: images {} have more than 2^31 rows, or elements in a row",
                       to_string(to.shape()));
    const RowGrid launch(on, lines, across, 1024);
    each_pixel<width><<<launch.grid, launch.block, 0, on.stream>>>(
        layout, static_cast<unsigned>(lines), static_cast<unsigned>(across), element, to.data<T>());
  });
}

/// The quotient of numbers below 2^32, because 64-bit divisions take longer than all else here.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return static_cast<unsigned>(a) / static_cast<unsigned>(b);
}

/// An element of y: the largest of its window, or the mean without winners.
template <class T, bool largest>
struct Pooled {
  Layout large, small;
  ops::Windows s;
  float share;
  const T* x;
  std::int32_t* winners;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& out) const {
    const ops::Window window{s.depth.window(out.slice), s.height.window(out.row), s.width.window(out.column)};
    Floats<Width> result{};
    Pack<std::int32_t, Width> winner{};
    bool first = largest;
    for (std::int64_t slice = window.depth.begin; slice < window.depth.end; ++slice) {
      for (std::int64_t row = window.rows.begin; row < window.rows.end; ++row) {
#pragma unroll 3
        for (std::int64_t column = window.columns.begin; column < window.columns.end; ++column) {
          const auto here = load_pack<T, Width>(x + large.offset_of({out.run, slice, row, column, out.lane}));
          const auto place =
              static_cast<std::int32_t>((slice * s.height.extent + row) * s.width.extent + column);
          for (int l = 0; l < Width; ++l) {
            const float value = to_float(here.lane[l]);
            if constexpr (!largest) {
              result.lane[l] += value;
            } else if (first || value > result.lane[l] || value != value) {  // NaN wins
              result.lane[l] = value;
              winner.lane[l] = place;
            }
          }
          first = false;
        }
      }
    }
    if constexpr (largest) store_pack(winners + small.offset_of(out), winner);
    return rounded_pack<T>(result, largest ? 1.0f : s.height.adaptive ? s.share(window) : share);
  }
};

/// An element of dx.
template <class T, bool largest>
struct Gathered {
  Layout large, small;
  ops::Windows s;
  float share;
  const T* dy;
  const std::int32_t* winners;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& to) const {
    const auto mine =
        static_cast<std::int32_t>((to.slice * s.height.extent + to.row) * s.width.extent + to.column);
    const ops::PositionRange slices = s.depth.over(to.slice), rows = s.height.over(to.row),
                             columns = s.width.over(to.column);
    const auto across = static_cast<int>(columns.end - columns.begin),
               of_slice = static_cast<int>(rows.end - rows.begin) * across;
    const int windows = static_cast<int>(slices.end - slices.begin) * of_slice;
    Floats<Width> sum{};
    constexpr int at_once = 2;  // windows that are read before one is waited for
    for (int first = 0; first < windows; first += at_once) {
      Pack<T, Width> here[at_once];
      Pack<std::int32_t, Width> winner[at_once];
      float shares[at_once];
#pragma unroll
      for (int w = 0; w < at_once; ++w) {
        if (first + w >= windows) continue;
        const std::int64_t slice = of_slice == windows ? 0 : quotient(first + w, of_slice),
                           within = first + w - slice * of_slice, row = quotient(within, across),
                           column = within - row * across;
        const Position at{to.run, slices.begin + slice, rows.begin + row, columns.begin + column, to.lane};
        const std::int64_t from = small.offset_of(at);
        shares[w] = share;
        if (!largest && s.height.adaptive)
          shares[w] = s.share({s.depth.window(at.slice), s.height.window(at.row), s.width.window(at.column)});
        here[w] = load_pack<T, Width>(dy + from);
        if constexpr (largest) winner[w] = load_pack<std::int32_t, Width>(winners + from);
      }
#pragma unroll
      for (int w = 0; w < at_once; ++w) {
        if (first + w >= windows) continue;
        for (int l = 0; l < Width; ++l) {
          if constexpr (!largest) {
            sum.lane[l] += to_float(here[w].lane[l]) * shares[w];
          } else if (winner[w].lane[l] == mine) {
            sum.lane[l] += to_float(here[w].lane[l]);
          }
        }
      }
    }
    return rounded_pack<T>(sum);
  }
};

/// Computes all of `to`, the large or the small side.
template <template <class, bool> class Element, class Op>
void pool(CudaBackend& gpu, const Op& op, const Tensor& large, const Tensor& small, const Tensor& from,
          const Tensor& to) {
  constexpr bool largest = requires(const Op& pooling) { pooling.winners; };
  const ops::Windows windows = op.windows();
  const float share = windows.height.adaptive ? 0.0f : windows.share({});
  std::int32_t* winners = nullptr;
  if constexpr (largest) winners = op.winners.template data<std::int32_t>();
  by_type_of(from, [&]<class T>(T) {
    const Element<T, largest> element{Layout(large), Layout(small), windows, share, from.data<T>(), winners};
    for_pixels<T>(gpu, to, element, from, winners);
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

/// Channels last: one thread per channel of an image, so that neighbours read neighbours.
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
  Layout small;
  int scale;
  const T* x;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& to) const {
    const std::int64_t slice = small.depth == 1 ? 0 : quotient(to.slice, scale);
    return load_pack<T, Width>(
        x + small.offset_of({to.run, slice, quotient(to.row, scale), quotient(to.column, scale), to.lane}));
  }
};

template <class T>
struct UpsampleBackward {
  Layout large;
  int scale, depth_scale;
  const T* dy;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& to) const {
    Floats<Width> sum{};
    for (int d = 0; d < depth_scale; ++d) {
      for (int h = 0; h < scale; ++h) {
        for (int w = 0; w < scale; ++w) {
          const Position from{to.run, to.slice * depth_scale + d, to.row * scale + h, to.column * scale + w,
                              to.lane};
          sum.join(load_pack<T, Width>(dy + large.offset_of(from)), [](float a, float b) { return a + b; });
        }
      }
    }
    return rounded_pack<T>(sum);
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
    for_pixels<T>(gpu, op.y, Upsample<T>{Layout(op.x), op.scale, op.x.data<T>()}, op.x);
  });
}

void upsample_nearest_backward(CudaBackend& gpu, const ops::UpsampleNearestBackward& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    const int depth_scale = op.dx.shape().rank() == 5 ? op.scale : 1;
    for_pixels<T>(gpu, op.dx, UpsampleBackward<T>{Layout(op.dy), op.scale, depth_scale, op.dy.data<T>()},
                  op.dy);
  });
}

template <class T>
struct Resized {
  Layout from;
  ops::Resizing down, across;
  const T* x;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& to) const {
    const ops::Neighbours rows = down.at(to.row), columns = across.at(to.column);
    Floats<Width> value{};
    const auto between = [&](std::int64_t row) {
      const auto pack = [&](std::int64_t column) {
        return load_pack<T, Width>(x + from.offset_of({to.run, 0, row, column, to.lane}));
      };
      const auto first = pack(columns.first), second = pack(columns.second);
      Floats<Width> along;
      for (int l = 0; l < Width; ++l)
        along.lane[l] =
            (1 - columns.share) * to_float(first.lane[l]) + columns.share * to_float(second.lane[l]);
      return along;
    };
    const Floats<Width> above = between(rows.first), below = between(rows.second);
    for (int l = 0; l < Width; ++l)
      value.lane[l] = (1 - rows.share) * above.lane[l] + rows.share * below.lane[l];
    return rounded_pack<T>(value);
  }
};

template <class T>
struct ResizedBackward {
  Layout to;
  ops::Resizing down, across;
  const T* dy;

  template <int Width>
  __device__ Pack<T, Width> at(const Position& from) const {
    const ops::Resizing::Range rows = down.around(from.row), columns = across.around(from.column);
    Floats<Width> sum{};
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const float of_row = down.at(row).of(from.row);
      Floats<Width> along{};
      for (std::int64_t column = columns.begin; column < columns.end; ++column) {
        const float share = across.at(column).of(from.column);
        along.join(load_pack<T, Width>(dy + to.offset_of({from.run, 0, row, column, from.lane})),
                   [&](float total, float value) { return total + share * value; });
      }
      for (int l = 0; l < Width; ++l) sum.lane[l] += of_row * along.lane[l];
    }
    return rounded_pack<T>(sum);
  }
};

void resize_bilinear(CudaBackend& gpu, const ops::ResizeBilinear& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.x, [&]<class T>(T) {
    for_pixels<T>(gpu, op.y, Resized<T>{Layout(op.x), sizes.height, sizes.width, op.x.data<T>()}, op.x);
  });
}

void resize_bilinear_backward(CudaBackend& gpu, const ops::ResizeBilinearBackward& op) {
  const ops::ResizeSizes sizes = op.sizes();
  by_type_of(op.dy, [&]<class T>(T) {
    for_pixels<T>(gpu, op.dx, ResizedBackward<T>{Layout(op.dy), sizes.height, sizes.width, op.dy.data<T>()},
                  op.dy);
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
