// Sums per channel in float64, whose parts are exact enough that no centre is too far off.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/image.h"
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

/// Where an image's channels come first: channel c has `images` runs of `places` elements. A block sums the
/// runs [begin, end) of one channel. partial: [chunks][Sums][channels]. term(element, channel, totals).
template <int Sums, class Term>
__global__ void __launch_bounds__(block)
    sum_runs(Image image, std::int64_t images_per_chunk, Term term, double* partial) {
  __shared__ double room[32];
  const std::int64_t channel = blockIdx.x, chunk = blockIdx.y, begin = chunk * images_per_chunk;
  const std::int64_t end = begin + images_per_chunk < image.images ? begin + images_per_chunk : image.images;
  double totals[Sums] = {};
  for (std::int64_t i = begin * image.places + threadIdx.x; i < end * image.places; i += block) {
    const std::int64_t number = i / image.places, place = i % image.places;
    term((number * image.channels + channel) * image.places + place, channel, totals);
  }
  for (int s = 0; s < Sums; ++s) {
    const double total = block_sum(totals[s], room);
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
    return sum_columns<Sums, double>(gpu, image.images * image.places, image.channels,
                                     ColumnTerm<Term>{term, image.channels}, receive);
  constexpr std::int64_t most_chunks = 64;
  const Launch on = gpu.launch();
  const std::int64_t chunks = image.images < most_chunks ? image.images : most_chunks;
  const Tensor room = gpu.scratch(Sums * chunks * image.channels, DType::float64);
  double* const partial = room.data<double>();
  if (chunks > 0) {
    // gridDim.x may be up to 2^31 - 1
    const dim3 grid(static_cast<unsigned>(image.channels), static_cast<unsigned>(chunks));
    sum_runs<Sums><<<grid, block, 0, on.stream>>>(image, ceil_div(image.images, chunks), term, partial);
  }
  for_elements(on, image.channels,
               FoldedChunks<Sums, double, Receive>{chunks, image.channels, partial, receive}, 128);
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
  const T *dy, *beside, *y, *x;
  const float* mean;
  T* gated;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const float given = beside ? to_float(dy[at]) + to_float(beside[at]) : to_float(dy[at]);
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
                 GatedBackwardTerms<T>{op.dy.data<T>(), data_or_null<T>(op.beside), op.y.data<T>(),
                                       op.x.data<T>(), op.mean.data<float>(), op.gated.data<T>()});
  });
}

}  // namespace

void enter_channel_sums(CudaBackend& gpu) {
  gpu.enter<&channel_sums, &channel_moments, &batch_norm_backward_sums, &batch_norm_gated_backward_sums>();
}

}  // namespace lockstep::kernels
