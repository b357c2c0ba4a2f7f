// Sums per channel in float64, whose parts are exact enough that no centre is too far off.
#include "kernels/cuda/column_sums.cuh"

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
void sum_channels(const char* name, const Launch& on, const Image& image, const Term& term,
                  const Receive& receive, double* partial) {
  if (image.channels == 0) return;
  if (image.channels_last) {
    sum_columns<Sums>(name, on, image.images * image.places, image.channels,
                      ColumnTerm<Term>{term, image.channels}, receive, partial);
    return;
  }
  const std::int64_t chunks = channel_chunks(image);
  if (chunks > 0) {
    // gridDim.x may be up to 2^31 - 1
    const dim3 grid(static_cast<unsigned>(image.channels), static_cast<unsigned>(chunks));
    sum_runs<Sums><<<grid, block, 0, on.stream>>>(image, ceil_div(image.images, chunks), term, partial);
    check_launch(name, on);
  }
  fold_chunks<Sums><<<grid_for(image.channels, 128, on), 128, 0, on.stream>>>(
      chunks, image.channels, static_cast<const double*>(partial), receive);
  check_launch(name, on);
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

template <class T>
struct BackwardTerms {
  const T *dy, *x;
  const float* mean;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const auto upstream = static_cast<double>(to_float(dy[at]));
    totals[0] += upstream;
    totals[1] += upstream * static_cast<double>(to_float(x[at]) - mean[channel]);
  }
};

/// Of what the ReLU behind a batch norm lets through.
template <class T>
struct ReluBackwardTerms {
  const T *dy, *x;
  ChannelScale by;
  __device__ void operator()(std::int64_t at, std::int64_t channel, double* totals) const {
    const float distance = to_float(x[at]) - by.mean[channel];
    const float factor = by.weight ? by.inv_std[channel] * by.weight[channel] : by.inv_std[channel];
    const float value = distance * factor + (by.bias ? by.bias[channel] : 0.0f);
    const auto upstream = static_cast<double>(to_float(dy[at]) * (value > 0.0f ? 1.0f : 0.0f));
    totals[0] += upstream;
    totals[1] += upstream * static_cast<double>(distance);
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

}  // namespace

std::int64_t channel_chunks(const Image& image) {
  if (image.channels_last) return row_chunks(image.images * image.places);
  constexpr std::int64_t most_chunks = 64;
  return image.images < most_chunks ? image.images : most_chunks;
}

void launch_channel_sums(const Launch& on, DType dtype, const void* dy, const Image& image, double* partial,
                         float* dbias, bool accumulate) {
  with_float_type<BF16>("channel_sums", dtype, [&]<class T>(T) {
    sum_channels<1>("channel_sums", on, image, Value<T>{static_cast<const T*>(dy)},
                    IntoGradients<1>{{dbias}, accumulate}, partial);
  });
}

void launch_channel_moments(const Launch& on, DType dtype, const void* x, const Image& image,
                            const float* centre, double* partial, double* moments) {
  with_float_type<BF16>("channel_moments", dtype, [&]<class T>(T) {
    sum_channels<2>("channel_moments", on, image, Moments<T>{static_cast<const T*>(x), centre},
                    IntoPairs{moments, image.channels, nullptr}, partial);
  });
}

void launch_batch_norm_backward_sums(const Launch& on, DType dtype, const void* dy, const void* x,
                                     const Image& image, const float* mean, const float* inv_std,
                                     double* partial, double* sums) {
  with_float_type<BF16>("batch_norm_backward_sums", dtype, [&]<class T>(T) {
    sum_channels<2>("batch_norm_backward_sums", on, image,
                    BackwardTerms<T>{static_cast<const T*>(dy), static_cast<const T*>(x), mean},
                    IntoPairs{sums, image.channels, inv_std}, partial);
  });
}

void launch_batch_norm_relu_backward_sums(const Launch& on, DType dtype, const void* dy, const void* x,
                                          const Image& image, const ChannelScale& by, double* partial,
                                          double* sums) {
  with_float_type<BF16>("batch_norm_relu_backward_sums", dtype, [&]<class T>(T) {
    sum_channels<2>("batch_norm_relu_backward_sums", on, image,
                    ReluBackwardTerms<T>{static_cast<const T*>(dy), static_cast<const T*>(x), by},
                    IntoPairs{sums, image.channels, by.inv_std}, partial);
  });
}

void launch_batch_norm_gated_backward_sums(const Launch& on, DType dtype, const GatedGradient& gradient,
                                           const void* x, const Image& image, const float* mean,
                                           const float* inv_std, double* partial, double* sums) {
  with_float_type<BF16>("batch_norm_gated_backward_sums", dtype, [&]<class T>(T) {
    const GatedBackwardTerms<T> terms{static_cast<const T*>(gradient.dy),
                                      static_cast<const T*>(gradient.beside),
                                      static_cast<const T*>(gradient.y),
                                      static_cast<const T*>(x),
                                      mean,
                                      static_cast<T*>(gradient.gated)};
    sum_channels<2>("batch_norm_gated_backward_sums", on, image, terms,
                    IntoPairs{sums, image.channels, inv_std}, partial);
  });
}

}  // namespace lockstep::kernels
