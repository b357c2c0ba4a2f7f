// Sums per channel in float64, whose parts are exact enough that no centre is too far off, and batch norm's
// passes over the activations, given those sums.
#include <limits>
#include <type_traits>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {
namespace {

constexpr int sums_block = 256;

/// Where an image's channels come first: channel c has `images` runs of `positions` elements. A block sums
/// the runs [begin, end) of one channel. partial: [chunks][Sums][channels]. term(element, channel, totals).
template <int Sums, class Term>
__global__ void __launch_bounds__(sums_block)
    sum_runs(Image image, std::int64_t images_per_chunk, Term term, double* partial) {
  __shared__ double shared[32];
  const std::int64_t channel = blockIdx.x, chunk = blockIdx.y, begin = chunk * images_per_chunk;
  const std::int64_t end = begin + images_per_chunk < image.images ? begin + images_per_chunk : image.images;
  double totals[Sums] = {};
  for (std::int64_t i = begin * image.positions + threadIdx.x; i < end * image.positions; i += sums_block) {
    const std::int64_t number = i / image.positions, position = i % image.positions;
    term((number * image.channels + channel) * image.positions + position, channel, totals);
  }
  for (int s = 0; s < Sums; ++s) {
    const double total = block_sum(totals[s], shared);
    if (threadIdx.x == 0) partial[(chunk * Sums + s) * image.channels + channel] = total;
  }
}

/// The same terms where channels are columns.
template <class Term>
struct ColumnTerm {
  Term term;
  std::int64_t channels;
  __device__ void operator()(std::int64_t row, std::int64_t column, double* totals) const {
    term(row * channels + column, column, totals);
  }
};

template <int Sums, class Term, class Receive>
void sum_channels(CudaBackend& gpu, const Image& image, const Term& term, const Receive& receive) {
  if (image.channels == 0) return;
  if (image.channels_last)
    return sum_columns<Sums, double>(gpu, image.images * image.positions, image.channels,
                                     ColumnTerm<Term>{term, image.channels}, receive);
  constexpr std::int64_t max_chunks = 64;
  const Launch on = gpu.launch();
  const std::int64_t chunks = image.images < max_chunks ? image.images : max_chunks;
  const Tensor scratch = gpu.scratch(Sums * chunks * image.channels, DType::float64);
  double* const partial = scratch.data<double>();
  if (chunks > 0) {
    // gridDim.x may be up to 2^31 - 1
    const dim3 grid(static_cast<unsigned>(image.channels), static_cast<unsigned>(chunks));
    sum_runs<Sums><<<grid, sums_block, 0, on.stream>>>(image, ceil_div(image.images, chunks), term, partial);
  }
  fold<Sums>(on, chunks, image.channels, static_cast<const double*>(partial), receive);
}

template <class T>
struct Value {
  const T* x;
  __device__ void operator()(std::int64_t at, std::int64_t, double* totals) const {
    totals[0] += static_cast<double>(to_float(x[at]));
  }
};

template <class T>
struct Moments {
  const T* x;
  const float* centre;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const double distance = static_cast<double>(to_float(x[at])) - static_cast<double>(centre[channel]);
    totals[0] += distance;
    totals[1] += distance * distance;
  }
};

/// relu: of what the ReLU behind the norm lets through.
template <class T, bool relu>
struct BackwardTerms {
  const T *dy, *x;
  const float *mean, *inv_std, *weight, *bias;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const float distance = to_float(x[at]) - mean[channel];
    float upstream = to_float(dy[at]);
    if constexpr (relu) {
      const float factor = weight ? inv_std[channel] * weight[channel] : inv_std[channel];
      upstream *= distance * factor + (bias ? bias[channel] : 0.0f) > 0.0f ? 1.0f : 0.0f;
    }
    totals[0] += static_cast<double>(upstream);
    totals[1] += static_cast<double>(upstream) * static_cast<double>(distance);
  }
};

/// The same, by the ReLU's value, of one or two gradients; it is kept.
template <class T>
struct GatedBackwardTerms {
  const T *dy, *second_grad, *y, *x;
  const float* mean;
  T* gated;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const float given = second_grad ? to_float(dy[at]) + to_float(second_grad[at]) : to_float(dy[at]);
    const T kept = rounded<T>(given * (to_float(y[at]) > 0.0f ? 1.0f : 0.0f));
    gated[at] = kept;
    const auto upstream = static_cast<double>(to_float(kept));
    totals[0] += upstream;
    totals[1] += upstream * static_cast<double>(to_float(x[at]) - mean[channel]);
  }
};

struct IntoPairs {
  double* to;
  std::int64_t channels;
  const float* factor;  // of the second; or null
  __device__ void operator()(std::int64_t channel, const double* totals) const {
    to[channel] = totals[0];
    to[channels + channel] = factor ? totals[1] * static_cast<double>(factor[channel]) : totals[1];
  }
};

void channel_sums(CudaBackend& gpu, const ops::ChannelSums& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    sum_channels<1>(gpu, image_of(op.dy), Value<T>{op.dy.data<T>()},
                    IntoGradients<1>{{op.dbias.data<float>()}, op.accumulate});
  });
}

void channel_moments(CudaBackend& gpu, const ops::ChannelMoments& op) {
  by_type_of(op.x, [&]<class T>(T) {
    sum_channels<2>(gpu, image_of(op.x), Moments<T>{op.x.data<T>(), op.centre.data<float>()},
                    IntoPairs{op.moments.data<double>(), op.x.size(1), nullptr});
  });
}

/// The pairs of a batch norm's backward, of `terms`.
template <class Terms>
void sum_backward(CudaBackend& gpu, const Tensor& x, const Tensor& inv_std, const Tensor& sums,
                  const Terms& terms) {
  sum_channels<2>(gpu, image_of(x), terms, IntoPairs{sums.data<double>(), x.size(1), inv_std.data<float>()});
}

void batch_norm_backward_sums(CudaBackend& gpu, const ops::BatchNormBackwardSums& op) {
  const ops::ChannelNorm& norm = op.norm;
  by_type_of(op.dy, [&]<class T>(T) {
    const auto run = [&]<bool relu>(std::bool_constant<relu>) {
      const BackwardTerms<T, relu> terms{op.dy.data<T>(),
                                         op.x.data<T>(),
                                         norm.mean.data<float>(),
                                         norm.inv_std.data<float>(),
                                         data_or_null<float>(norm.weight),
                                         data_or_null<float>(norm.bias)};
      sum_backward(gpu, op.x, norm.inv_std, op.sums, terms);
    };
    op.relu ? run(std::true_type{}) : run(std::false_type{});
  });
}

void batch_norm_gated_backward_sums(CudaBackend& gpu, const ops::BatchNormGatedBackwardSums& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    sum_backward(gpu, op.x, op.inv_std, op.sums,
                 GatedBackwardTerms<T>{op.dy.data<T>(), data_or_null<T>(op.second_grad), op.y.data<T>(),
                                       op.x.data<T>(), op.mean.data<float>(), op.gated.data<T>()});
  });
}

/// The image as a matrix whose rows have one channel each (channels first), or whose columns have.
struct Matrix {
  std::int64_t rows, width, channels;
  bool channels_last;

  explicit Matrix(const Image& image)
      : rows(image.channels_last ? image.images * image.positions : image.images * image.channels),
        width(image.channels_last ? image.channels : image.positions),
        channels(image.channels),
        channels_last(image.channels_last) {}
};

/// max(least, the norm + a shortcut)
struct Normalise {
  const float *mean, *inv_std, *weight, *bias;
  float least = 0;

  struct Channel {
    float mean, factor, bias, least;
    __device__ float norm(float x) const { return (x - mean) * factor + bias; }
    __device__ float finished(float value) const { return value < least ? least : value; }  // NaN stays
    __device__ float operator()(float x) const { return finished(norm(x)); }
    __device__ float operator()(float x, float shortcut) const { return finished(norm(x) + shortcut); }
  };
  __device__ Channel of(std::int64_t c) const {
    return {mean[c], weight ? inv_std[c] * weight[c] : inv_std[c], bias ? bias[c] : 0.0f, least};
  }
};

struct Shift {
  const float* bias;

  struct Channel {
    float bias;
    __device__ float operator()(float x) const { return x + bias; }
  };
  __device__ Channel of(std::int64_t c) const { return {bias[c]}; }
};

/// relu: of what the ReLU behind the norm lets through.
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
  __device__ Channel of(std::int64_t c) const {
    const double n = count ? *count : 0;
    if (n == 0) return {normalise.of(c), 0, 0};  // statistics that were constants
    return {normalise.of(c), static_cast<float>(sums[c] / n),
            static_cast<float>(sums[channels + c] / n * static_cast<double>(normalise.inv_std[c]))};
  }
};

template <int Width, class Function, class T, class... From>
__device__ Pack<T, Width> lanes_of(const Function* f, int stride, const Pack<From, Width>&... in) {
  Pack<T, Width> out;
  for (int lane = 0; lane < Width; ++lane)
    out.lane[lane] = rounded<T>(f[lane * stride](to_float(in.lane[lane])...));
  return out;
}

/// y = f(from...), f depending on the channel. Width divides the matrix's. Threads keep their columns.
template <int Width, class Parameters, class T, class... From>
__global__ void __launch_bounds__(256)
    map_channels(Matrix matrix, Parameters parameters, T* y, const From*... from) {
  const std::int64_t packs = matrix.width / Width;
  for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
    const std::int64_t at = i * Width;
    typename Parameters::Channel channel[Width];
    if (matrix.channels_last) {
      for (int lane = 0; lane < Width; ++lane) channel[lane] = parameters.of(at + lane);
    }
    for (std::int64_t row = first_row(); row < matrix.rows; row += rows_apart()) {
      const std::int64_t position = row * matrix.width + at;
      if (!matrix.channels_last) channel[0] = parameters.of(row % matrix.channels);
      store_pack(y + position,
                 lanes_of<Width, typename Parameters::Channel, T>(
                     channel, matrix.channels_last ? 1 : 0, load_pack<From, Width>(from + position)...));
    }
  }
}

/// y = f(from...) by `parameters` of each channel, all of T.
template <class T, class Parameters, class... From>
void map_image(const Launch& on, const Parameters& parameters, const Tensor& y, const From&... from) {
  if (y.numel() == 0) return;
  const Matrix matrix(image_of(y));
  const bool packs =
      matrix.width % pack_width<T> == 0 && packs_at(y.raw()) && (true && ... && packs_at(from.raw()));
  with_width<T>(packs, [&]<int width>(Width<width>) {
    const RowGrid launch(on, matrix.rows, matrix.width / width, 1024);
    map_channels<width><<<launch.grid, launch.block, 0, on.stream>>>(matrix, parameters, y.data<T>(),
                                                                     from.template data<T>()...);
  });
}

Normalise normalise_by(const ops::ChannelNorm& norm) {
  return {norm.mean.data<float>(), norm.inv_std.data<float>(), data_or_null<float>(norm.weight),
          data_or_null<float>(norm.bias)};
}

void batch_norm(CudaBackend& gpu, const ops::BatchNorm& op) {
  Normalise normalise = normalise_by(op.norm);
  if (!op.relu) normalise.least = -std::numeric_limits<float>::infinity();
  by_type_of(op.x, [&]<class T>(T) {
    if (op.shortcut) return map_image<T>(gpu.launch(), normalise, op.y, op.x, op.shortcut);
    map_image<T>(gpu.launch(), normalise, op.y, op.x);
  });
}

void batch_norm_backward_input(CudaBackend& gpu, const ops::BatchNormBackwardInput& op) {
  by_type_of(op.dy, [&]<class T>(T) {
    const auto run = [&]<bool relu>(std::bool_constant<relu>) {
      const InputGradient<relu> gradient{normalise_by(op.norm), op.sums.data<double>(),
                                         data_or_null<double>(op.count), op.dy.size(1)};
      map_image<T>(gpu.launch(), gradient, op.dx, op.dy, op.x);
    };
    op.relu ? run(std::true_type{}) : run(std::false_type{});
  });
}

}  // namespace

void add_channels(const Launch& on, const Tensor& bias, const Tensor& y) {
  by_type_of(y, [&]<class T>(T) { map_image<T>(on, Shift{bias.data<float>()}, y, y); });
}

namespace {

template <class Item, class Operation>
void each_item(CudaBackend& gpu, const Operation& op) {
  const Item item(op);
  for_elements(gpu.launch(), item.items(), item, 128);
}

// Moments are summed in float64 from the first element on, wherever their centre is.
void moments_lack_digits(CudaBackend&, const ops::MomentsLackDigits& op) { *op.lack = false; }

}  // namespace

void enter_batch_norm(CudaBackend& gpu) {
  gpu.enter<&channel_sums, &channel_moments, &batch_norm_backward_sums, &batch_norm_gated_backward_sums>();
  gpu.enter<&batch_norm, &batch_norm_backward_input>();
  gpu.enter<&each_item<ops::BatchStatisticsItem, ops::BatchStatistics>,
            &each_item<ops::MoveCentreItem, ops::MoveCentre>,
            &each_item<ops::UpdateRunningItem, ops::UpdateRunning>, &moments_lack_digits>();
}

}  // namespace lockstep::kernels
