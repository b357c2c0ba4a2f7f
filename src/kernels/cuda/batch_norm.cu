// Sums per channel in float64, which is exact enough for any centre, and batch norm's passes over the
// activations by those sums.
#include <limits>
#include <type_traits>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/convolution.h"
#include "ops/batch_norm.h"

namespace lockstep::kernels {
namespace {

constexpr int sums_block = 256;

/// For images with channels first: channel c has `images` runs of `positions` elements. A block sums the runs
/// [begin, end) of one channel in one part. partial: [parts][chunks][Sums][channels].
template <int Sums, class Terms>
__global__ void __launch_bounds__(sums_block)
    sum_runs(Image image, std::int64_t images_per_chunk, Terms terms, double* partial) {
  __shared__ double shared[32];
  const std::int64_t channel = blockIdx.x, chunk = blockIdx.y, begin = chunk * images_per_chunk;
  const std::int64_t end = begin + images_per_chunk < image.images ? begin + images_per_chunk : image.images;
  double totals[Sums][1] = {};
  const auto add = terms.template of<1>(part_number() * image.channels, channel);
  for (std::int64_t i = begin * image.positions + threadIdx.x; i < end * image.positions; i += sums_block) {
    const std::int64_t number = part_number() * image.images + i / image.positions,
                       position = i % image.positions;
    add((number * image.channels + channel) * image.positions + position, number, totals);
  }
  for (int s = 0; s < Sums; ++s) {
    const double total = block_sum(totals[s][0], shared);
    if (threadIdx.x == 0)
      partial[((std::int64_t{part_number()} * gridDim.y + chunk) * Sums + s) * image.channels + channel] =
          total;
  }
}

/// Sums `terms` over T, whose addresses are `at`. image: of one part.
template <int Sums, class T, class Terms, class Receive, class... At>
void sum_channels(CudaBackend& gpu, int parts, const Image& image, const Terms& terms, const Receive& receive,
                  const At*... at) {
  if (image.channels == 0) return;
  if (image.channels_last)
    return sum_columns<Sums, double, T>(gpu, image.images * image.positions, image.channels,
                                        sums_packs<double, T>(image.channels, at...), terms, receive, parts);
  constexpr std::int64_t max_chunks = 64;
  const Launch on = gpu.launch();
  const std::int64_t chunks = image.images < max_chunks ? image.images : max_chunks;
  const Tensor scratch = gpu.scratch(parts * Sums * chunks * image.channels, DType::float64);
  double* const partial = scratch.data<double>();
  if (chunks > 0) {
    // gridDim.x may be up to 2^31 - 1
    const dim3 grid(static_cast<unsigned>(image.channels), static_cast<unsigned>(chunks),
                    static_cast<unsigned>(parts));
    sum_runs<Sums><<<grid, sums_block, 0, on.stream>>>(image, ceil_div(image.images, chunks), terms, partial);
  }
  fold<Sums>(on, chunks, image.channels, static_cast<const double*>(partial), receive, parts);
}

/// Values of Width channels.
template <class Value, int Width>
struct Channels {
  Value lane[Width];
};

/// f(channel) for each channel.
template <int Width, class Function>
__device__ auto of_channels(std::int64_t first, const Function& f) {
  Channels<decltype(f(first)), Width> all;
  for (int lane = 0; lane < Width; ++lane) all.lane[lane] = f(first + lane);
  return all;
}

template <class T>
struct Moments {
  const T* x;
  const float* centre;

  template <int Width>
  __device__ auto of(std::int64_t, std::int64_t channel) const {
    const auto centres = of_channels<Width>(channel, [&](std::int64_t c) { return centre[c]; });
    return [from = x, centres](std::int64_t at, std::int64_t, auto& totals) {
      const auto in = load_pack<T, Width>(from + at);
      for (int lane = 0; lane < Width; ++lane) {
        const double distance = double{to_float(in.lane[lane])} - double{centres.lane[lane]};
        totals[0][lane] += distance;
        totals[1][lane] += distance * distance;
      }
    };
  }
};

/// relu: dy is masked by the ReLU after the norm.
template <class T, bool relu>
struct BackwardTerms {
  const T *dy, *x;
  const float *mean, *inv_std, *weight, *bias;

  template <int Width>
  __device__ auto of(std::int64_t earlier, std::int64_t channel) const {
    struct Channel {
      float mean, factor, bias;
    };
    const auto channels = of_channels<Width>(channel, [&](std::int64_t c) {
      const float factor = inv_std[earlier + c];
      return Channel{mean[earlier + c], weight ? factor * weight[c] : factor, bias ? bias[c] : 0.0f};
    });
    return [upstream = dy, from = x, channels](std::int64_t at, std::int64_t, auto& totals) {
      const auto grad = load_pack<T, Width>(upstream + at), in = load_pack<T, Width>(from + at);
      for (int lane = 0; lane < Width; ++lane) {
        const Channel& by = channels.lane[lane];
        const float distance = to_float(in.lane[lane]) - by.mean;
        float passed = to_float(grad.lane[lane]);
        if constexpr (relu) passed *= distance * by.factor + by.bias > 0.0f ? 1.0f : 0.0f;
        totals[0][lane] += double{passed};
        totals[1][lane] += double{passed} * double{distance};
      }
    };
  }
};

/// The same for one or two gradients, masked by the ReLU's value; the masked gradient is stored.
template <class T>
struct GatedBackwardTerms {
  const T *dy, *second_grad, *y, *x;
  const float* mean;
  T* gated;

  template <int Width>
  __device__ auto of(std::int64_t earlier, std::int64_t channel) const {
    const auto means = of_channels<Width>(earlier + channel, [&](std::int64_t c) { return mean[c]; });
    return [*this, means](std::int64_t at, std::int64_t, auto& totals) {
      auto grad = load_pack<T, Width>(dy + at);
      Pack<T, Width> second{};
      if (second_grad) second = load_pack<T, Width>(second_grad + at);
      const auto out = load_pack<T, Width>(y + at), in = load_pack<T, Width>(x + at);
      for (int lane = 0; lane < Width; ++lane) {
        float total = to_float(grad.lane[lane]);
        if (second_grad) total += to_float(second.lane[lane]);
        const T kept = rounded<T>(total * (to_float(out.lane[lane]) > 0.0f ? 1.0f : 0.0f));
        grad.lane[lane] = kept;
        const double passed{to_float(kept)};
        totals[0][lane] += passed;
        totals[1][lane] += passed * double{to_float(in.lane[lane]) - means.lane[lane]};
      }
      store_pack(gated + at, grad);
    };
  }
};

struct IntoPairs {
  double* to;
  std::int64_t channels;
  const float* factor;  // of the second gradient
  __device__ void operator()(std::int64_t earlier, std::int64_t channel, const double* totals) const {
    double* const pair = to + 2 * earlier + channel;
    pair[0] = totals[0];
    pair[channels] = totals[1] * static_cast<double>(factor[earlier + channel]);
  }
};

void channel_sums(CudaBackend& gpu, const ops::ChannelSums& op, int parts) {
  by_type_of(op.dy, [&]<class T>(T) {
    const T* const dy = op.dy.data<T>();
    sum_channels<1, T>(gpu, parts, image_of(op.dy), Elements<T>{dy},
                       IntoGradients<1>{{op.dbias.data<float>()}, op.accumulate}, dy);
  });
}

/// A total of moments of each part.
struct IntoMoments {
  double* to;
  std::int64_t channels;
  double count;
  __device__ void operator()(std::int64_t earlier, std::int64_t channel, const double* totals) const {
    double* const own = to + 2 * earlier + part_number();
    own[channel] = totals[0];
    own[channels + channel] = totals[1];
    if (channel == 0) own[2 * channels] = count;
  }
};

void channel_moments(CudaBackend& gpu, const ops::ChannelMoments& op, int parts) {
  if (op.x.size(1) == 0) return gpu.fill(op.total, 0);
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    sum_channels<2, T>(gpu, parts, image_of(op.x), Moments<T>{x, op.centre.data<float>()},
                       IntoMoments{op.total.data<double>(), op.x.size(1), static_cast<double>(op.count())},
                       x);
  });
}

/// The two sums of a batch norm's backward, of `terms` over T, whose addresses are `at`.
template <class T, class Terms, class... At>
void sum_backward(CudaBackend& gpu, int parts, const Tensor& x, const Tensor& inv_std, const Tensor& sums,
                  const Terms& terms, const At*... at) {
  sum_channels<2, T>(gpu, parts, image_of(x), terms,
                     IntoPairs{sums.data<double>(), x.size(1), inv_std.data<float>()}, at...);
}

void batch_norm_backward_sums(CudaBackend& gpu, const ops::BatchNormBackwardSums& op, int parts) {
  const ops::ChannelNorm& norm = op.norm;
  by_type_of(op.dy, [&]<class T>(T) {
    const auto run = [&]<bool relu>(std::bool_constant<relu>) {
      const BackwardTerms<T, relu> terms{op.dy.data<T>(),
                                         op.x.data<T>(),
                                         norm.mean.data<float>(),
                                         norm.inv_std.data<float>(),
                                         data_or_null<float>(norm.weight),
                                         data_or_null<float>(norm.bias)};
      sum_backward<T>(gpu, parts, op.x, norm.inv_std, op.sums, terms, terms.dy, terms.x);
    };
    op.relu ? run(std::true_type{}) : run(std::false_type{});
  });
}

void batch_norm_gated_backward_sums(CudaBackend& gpu, const ops::BatchNormGatedBackwardSums& op, int parts) {
  by_type_of(op.dy, [&]<class T>(T) {
    const GatedBackwardTerms<T> terms{op.dy.data<T>(), data_or_null<T>(op.second_grad), op.y.data<T>(),
                                      op.x.data<T>(),  op.mean.data<float>(),           op.gated.data<T>()};
    sum_backward<T>(gpu, parts, op.x, op.inv_std, op.sums, terms, terms.dy, terms.second_grad, terms.y,
                    terms.x, terms.gated);
  });
}

/// The image as a matrix with one channel per row (channels first) or per column.
struct Matrix {
  std::int64_t rows, width, channels;
  bool channels_last;

  explicit Matrix(const Image& image)
      : rows(image.channels_last ? image.images * image.positions : image.images * image.channels),
        width(image.channels_last ? image.channels : image.positions),
        channels(image.channels),
        channels_last(image.channels_last) {}
};

/// Width elements of `from` from a channel on; `absent` if `from` is null.
template <int Width, class T>
__device__ Pack<T, Width> load_channels(const T* from, std::int64_t first, T absent = 0) {
  if (from) return load_vector<Width>(from + first);
  Pack<T, Width> all;
  for (int lane = 0; lane < Width; ++lane) all.lane[lane] = absent;
  return all;
}

/// max(min, the norm + a shortcut)
struct Normalise {
  const float *mean, *inv_std, *weight, *bias;
  float min = 0;

  struct Channel {
    float mean, factor, bias, min;
    __device__ float norm(float x) const { return (x - mean) * factor + bias; }
    __device__ float finished(float value) const { return value < min ? min : value; }  // NaN stays
    __device__ float operator()(float x) const { return finished(norm(x)); }
    __device__ float operator()(float x, float shortcut) const { return finished(norm(x) + shortcut); }
  };
  /// earlier: channels of earlier parts, which have their own mean and inv_std.
  template <int Width>
  __device__ Channels<Channel, Width> of(std::int64_t earlier, std::int64_t c) const {
    const auto means = load_channels<Width>(mean, earlier + c),
               factors = load_channels<Width>(inv_std, earlier + c);
    const auto weights = load_channels<Width>(weight, c, 1.0f), biases = load_channels<Width>(bias, c);
    Channels<Channel, Width> all;
    for (int lane = 0; lane < Width; ++lane)
      all.lane[lane] = {means.lane[lane], factors.lane[lane] * weights.lane[lane], biases.lane[lane], min};
    return all;
  }
  bool packs() const { return packs_at(mean) && packs_at(inv_std) && packs_at(weight) && packs_at(bias); }
};

struct Shift {
  const float* bias;

  struct Channel {
    float bias;
    __device__ float operator()(float x) const { return x + bias; }
  };
  template <int Width>
  __device__ Channels<Channel, Width> of(std::int64_t, std::int64_t c) const {
    const auto biases = load_channels<Width>(bias, c);
    Channels<Channel, Width> all;
    for (int lane = 0; lane < Width; ++lane) all.lane[lane] = {biases.lane[lane]};
    return all;
  }
  bool packs() const { return packs_at(bias); }
};

/// relu: dy is masked by the ReLU after the norm.
template <bool relu>
struct InputGradient {
  Normalise normalise;
  const double *sums, *count;
  std::int64_t channels;

  struct Channel {
    Normalise::Channel normalise;
    float mean_dy, slope;
    __device__ float operator()(float dy, float x) const {
      if constexpr (relu) dy *= normalise.norm(x) > 0.0f ? 1.0f : 0.0f;
      return normalise.factor * ((dy - mean_dy) - (x - normalise.mean) * slope);
    }
  };
  template <int Width>
  __device__ Channels<Channel, Width> of(std::int64_t earlier, std::int64_t c) const {
    const auto norms = normalise.of<Width>(earlier, c);
    const auto scales = load_channels<Width>(normalise.inv_std, earlier + c);
    const auto of_dy = load_channels<Width>(sums + 2 * earlier, c),
               of_products = load_channels<Width>(sums + 2 * earlier + channels, c);
    const double n = count ? count[part_number()] : 0, share = 1 / n;
    Channels<Channel, Width> all;
    for (int lane = 0; lane < Width; ++lane) {
      all.lane[lane] = {norms.lane[lane], 0, 0};
      if (n == 0) continue;  // the statistics were constants, and the sums do not count
      all.lane[lane].mean_dy = static_cast<float>(of_dy.lane[lane] * share);
      all.lane[lane].slope = static_cast<float>(of_products.lane[lane] * share * double{scales.lane[lane]});
    }
    return all;
  }
  bool packs() const { return normalise.packs() && packs_at(sums) && packs_at(sums + channels); }
};

template <int Width, class Function, class T, class... From>
__device__ Pack<T, Width> lanes_of(const Function* f, int stride, const Pack<From, Width>&... in) {
  Pack<T, Width> out;
  for (int lane = 0; lane < Width; ++lane)
    out.lane[lane] = rounded<T>(f[lane * stride](to_float(in.lane[lane])...));
  return out;
}

/// y = f(from...), where f depends on the channel. Width divides the matrix's width. Threads keep their
/// columns.
template <int Width, class Parameters, class T, class... From>
__global__ void __launch_bounds__(256)
    map_channels(Matrix matrix, Parameters parameters, T* y, const From*... from) {
  const std::int64_t packs = matrix.width / Width, earlier = part_number() * matrix.channels,
                     begin = part_number() * matrix.rows * matrix.width;
  using Channel = typename Parameters::Channel;
  for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
    const std::int64_t at = i * Width;
    if (matrix.channels_last) {
      const auto channels = parameters.template of<Width>(earlier, at);
      for (std::int64_t row = first_row(); row < matrix.rows; row += rows_apart()) {
        const std::int64_t position = begin + row * matrix.width + at;
        store_pack(y + position,
                   lanes_of<Width, Channel, T>(channels.lane, 1, load_pack<From, Width>(from + position)...));
      }
    } else {
      for (std::int64_t row = first_row(); row < matrix.rows; row += rows_apart()) {
        const std::int64_t position = begin + row * matrix.width + at;
        const auto channel = parameters.template of<1>(earlier, row % matrix.channels);
        store_pack(y + position,
                   lanes_of<Width, Channel, T>(channel.lane, 0, load_pack<From, Width>(from + position)...));
      }
    }
  }
}

/// y = f(from...) by `parameters` of each channel, all of T.
template <class T, class Parameters, class... From>
void map_image(const Launch& on, int parts, const Parameters& parameters, const Tensor& y,
               const From&... from) {
  if (y.numel() == 0) return;
  const Matrix matrix(image_of(y));
  const bool packs = matrix.width % pack_width<T> == 0 && packs_at(y.raw()) &&
                     (true && ... && packs_at(from.raw())) && (!matrix.channels_last || parameters.packs());
  with_width<T>(packs, [&]<int width>(Width<width>) {
    constexpr std::int64_t rows_of_thread = 4;  // per load of its channels' parameters
    const RowGrid launch(on, ceil_div(matrix.rows, rows_of_thread), matrix.width / width, 1024);
    map_channels<width><<<for_parts(launch.grid, parts), launch.block, 0, on.stream>>>(
        matrix, parameters, y.data<T>(), from.template data<T>()...);
  });
}

Normalise normalise_by(const ops::ChannelNorm& norm) {
  return {norm.mean.data<float>(), norm.inv_std.data<float>(), data_or_null<float>(norm.weight),
          data_or_null<float>(norm.bias)};
}

void batch_norm(CudaBackend& gpu, const ops::BatchNorm& op, int parts) {
  Normalise normalise = normalise_by(op.norm);
  if (!op.relu) normalise.min = -std::numeric_limits<float>::infinity();
  by_type_of(op.x, [&]<class T>(T) {
    if (op.shortcut) return map_image<T>(gpu.launch(), parts, normalise, op.y, op.x, op.shortcut);
    map_image<T>(gpu.launch(), parts, normalise, op.y, op.x);
  });
}

void batch_norm_backward_input(CudaBackend& gpu, const ops::BatchNormBackwardInput& op, int parts) {
  by_type_of(op.dy, [&]<class T>(T) {
    const auto run = [&]<bool relu>(std::bool_constant<relu>) {
      const InputGradient<relu> gradient{normalise_by(op.norm), op.sums.data<double>(),
                                         data_or_null<double>(op.count), op.dy.size(1)};
      map_image<T>(gpu.launch(), parts, gradient, op.dx, op.dy, op.x);
    };
    op.relu ? run(std::true_type{}) : run(std::false_type{});
  });
}

}  // namespace

void add_channels(const Launch& on, const Tensor& bias, const Tensor& y) {
  by_type_of(y, [&]<class T>(T) { map_image<T>(on, 1, Shift{bias.data<float>()}, y, y); });
}

namespace {

template <class Item, class Operation>
void each_item(CudaBackend& gpu, const Operation& op) {
  const Item item(op);
  for_elements(gpu.launch(), item.items(), item, 128);
}

/// BatchStatisticsItem of each part.
struct StatisticsItem {
  ops::BatchStatisticsItem item;

  __device__ void operator()(std::int64_t c) const {
    ops::BatchStatisticsItem own = item;
    const std::int64_t earlier = part_number() * item.moments.channels;
    if (own.moments.data) own.moments.data += 2 * earlier + part_number();
    own.mean += earlier;
    own.inv_std += earlier;
    own(c);
  }
};

void batch_statistics(CudaBackend& gpu, const ops::BatchStatistics& op, int parts) {
  const ops::BatchStatisticsItem item(op);
  for_elements(gpu.launch(), item.items(), StatisticsItem{item}, 128, parts);
}

// Moments are summed in float64 from the first element on, so any centre is good.
void moments_lack_digits(CudaBackend&, const ops::MomentsLackDigits& op) { *op.lack = false; }

}  // namespace

void enter_batch_norm(CudaBackend& gpu) {
  gpu.enter_at_once<&channel_sums, &channel_moments, &batch_norm_backward_sums,
                    &batch_norm_gated_backward_sums, &batch_norm, &batch_norm_backward_input,
                    &batch_statistics>();
  gpu.enter<&each_item<ops::MoveCentreItem, ops::MoveCentre>,
            &each_item<ops::UpdateRunningItem, ops::UpdateRunning>, &moments_lack_digits>();
}

}  // namespace lockstep::kernels
