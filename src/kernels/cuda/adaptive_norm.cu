// Adaptive group norm with its SiLU, channels last. A block normalises a span of whole groups of one image:
// it reads its rows once from memory, and again from the cache. How an image is cut into spans depends on
// the image alone, so that its bits do not depend on how many there are.
#include <limits>
#include <numeric>

#include "kernels/compositions.h"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/formulas.h"
#include "ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr int span_threads = 256, max_span_channels = 512, max_width = 8;

/// A block's threads are `rows` rows of `packs` packs of channels; the rest of them idle.
struct Spans {
  ops::GroupSizes sizes;
  int channels = 0;  ///< of a span; 0: no span fits a block
  int packs = 0, rows = 0;
  unsigned of_image = 0, count = 0;

  Spans(const ops::GroupSizes& of, int width, std::size_t element_bytes) : sizes(of) {
    constexpr std::size_t whole_bytes = 64;  // of a row, so that memory is read in whole sectors
    if (of.channels == 0) return;
    std::int64_t span = std::lcm(of.channels_per_group, std::int64_t{width});
    while (static_cast<std::size_t>(span) * element_bytes < whole_bytes && of.channels % (2 * span) == 0)
      span *= 2;
    const std::int64_t spans = of.channels / span;
    if (of.channels % span != 0 || span > max_span_channels || span / width > span_threads ||
        of.images * spans > std::numeric_limits<int>::max())
      return;
    channels = static_cast<int>(span);
    packs = channels / width;
    rows = span_threads / packs;
    of_image = static_cast<unsigned>(spans);
    count = static_cast<unsigned>(of.images * spans);
  }
};

/// What the norm's result depends on besides x; null: absent.
template <class T>
struct NormInputs {
  const T *addend, *scale_shift;
  const float *weight, *bias;

  __device__ float added(std::int64_t image, std::int64_t channels, std::int64_t c) const {
    return addend ? to_float(addend[image * channels + c]) : 0.0f;
  }
  __device__ float gain(std::int64_t image, std::int64_t channels, std::int64_t c) const {
    return scale_shift ? 1.0f + to_float(scale_shift[2 * image * channels + c]) : 1.0f;
  }
  __device__ float shift(std::int64_t image, std::int64_t channels, std::int64_t c) const {
    return scale_shift ? to_float(scale_shift[(2 * image + 1) * channels + c]) : 0.0f;
  }
};

/// By channel of a span: silu's argument is (x - centre) factor + shift.
struct Coefficients {
  float centre[max_span_channels], factor[max_span_channels], shift[max_span_channels];
};

/// The span of a block, for the code of one thread.
struct Span {
  std::int64_t image, first;  ///< first: its first element
  int first_channel, pack, row;
  bool idle;

  __device__ Span(const Spans& spans, unsigned number)
      : image(number / spans.of_image),
        first_channel(static_cast<int>(number % spans.of_image) * spans.channels),
        pack(static_cast<int>(threadIdx.x) % spans.packs),
        row(static_cast<int>(threadIdx.x) / spans.packs),
        idle(row >= spans.rows) {
    first = image * spans.sizes.positions * spans.sizes.channels + first_channel;
  }

  /// Calls body(element) for this thread's packs.
  template <int Width, class Body>
  __device__ void for_packs(const Spans& spans, const Body& body) const {
    if (idle) return;
    for (std::int64_t p = row; p < spans.sizes.positions; p += spans.rows)
      body(first + p * spans.sizes.channels + pack * Width);
  }
};

/// What follows the norm.
enum class Then : std::uint8_t { nothing, silu, silu_and_dropout };

struct SpanDropout {
  KernelRandom random;
  float p = 0, factor = 1;      ///< factor: 1 / (1 - p)
  unsigned images_of_part = 1;  ///< the images of a part have the draws of its key
};

/// Calls body(element, kept) for this thread's packs. kept(k, value): what dropout makes of element k of the
/// pack. With dropout a thread has four positions at once, whose Philox blocks they share.
template <int Width, Then then, class Body>
__device__ void for_kept_packs(const Spans& spans, const Span& span, const SpanDropout& dropout,
                               const Body& body) {
  if constexpr (then == Then::silu_and_dropout) {
    if (span.idle) return;
    const auto image = static_cast<unsigned>(span.image), part = image / dropout.images_of_part;
    const Random random = dropout.random.get(part);
    const int channel = span.first_channel + span.pack * Width;
    const auto fours = static_cast<unsigned>(spans.sizes.positions / 4);
    const std::uint64_t first_row =
        static_cast<std::uint64_t>(image - part * dropout.images_of_part) * spans.sizes.channels + channel;
    for (auto four = static_cast<unsigned>(span.row); four < fours; four += spans.rows) {
      unsigned keeps = 0;  // a bit for each element and position: words would fill the registers
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        const auto words = random.block((first_row + k) * fours + four);
#pragma unroll
        for (int q = 0; q < 4; ++q)
          keeps |= static_cast<unsigned>(Random::to_uniform(words[q]) >= dropout.p) << (4 * k + q);
      }
      const std::int64_t at = span.first + 4ll * four * spans.sizes.channels + span.pack * Width;
#pragma unroll 2
      for (int q = 0; q < 4; ++q)
        body(at + q * spans.sizes.channels,
             [&](int k, float value) { return keeps >> (4 * k + q) & 1 ? value * dropout.factor : 0.0f; });
    }
  } else {
    span.for_packs<Width>(spans, [&](std::int64_t i) { body(i, [](int, float value) { return value; }); });
  }
}

/// What a thread needs of its channels, in registers.
template <int Width>
struct OfPack {
  float at[Width];

  __device__ OfPack(const float* of_channels, const Span& span) {
    for (int k = 0; k < Width; ++k) at[k] = span.idle ? 0.0f : of_channels[span.pack * Width + k];
  }
  __device__ float operator[](int k) const { return at[k]; }
};

/// totals[channel] = the sum of the threads' parts of it, in a fixed order. partial: shared memory for the
/// parts. All threads of the block call it.
template <int Width>
__device__ void fold_rows(const Spans& spans, const Span& span, const float (&part)[Width], float* partial,
                          float* totals) {
  __syncthreads();  // the memory was read
  if (!span.idle)
    for (int k = 0; k < Width; ++k) partial[span.row * spans.channels + span.pack * Width + k] = part[k];
  for (int left = spans.rows; left > 1;) {
    const int half = (left + 1) / 2;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < (left - half) * spans.channels; i += span_threads)
      partial[i] += partial[half * spans.channels + i];
    left = half;
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < spans.channels; c += span_threads) totals[c] = partial[c];
  __syncthreads();
}

/// Calls body(group of the span, sum of term(channel) over its channels) in the lanes of a warp for each
/// group.
template <class Term, class Body>
__device__ void for_groups(const Spans& spans, const Term& term, const Body& body) {
  const int per_group = static_cast<int>(spans.sizes.channels_per_group), groups = spans.channels / per_group,
            lane = static_cast<int>(threadIdx.x) % 32;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < groups; group += span_threads / 32) {
    float sum = 0;
    for (int c = lane; c < per_group; c += 32) sum += term(group * per_group + c);
    sum = warp_sum(sum);
    for (int c = lane; c < per_group; c += 32) body(group, group * per_group + c, sum);
  }
  __syncthreads();
}

template <int Width, Then then, class T>
__global__ void __launch_bounds__(span_threads, 2)
    normalise_spans(Spans spans, NormInputs<T> in, const T* x, float eps, SpanDropout dropout, T* y,
                    float* mean, float* inv_std) {
  __shared__ float partial[span_threads * max_width], totals[max_span_channels];
  __shared__ Coefficients by;
  const std::int64_t channels = spans.sizes.channels, groups = spans.sizes.groups;
  const auto positions = static_cast<float>(spans.sizes.positions),
             elements = positions * static_cast<float>(spans.sizes.channels_per_group);
  for (unsigned number = blockIdx.x; number < spans.count; number += gridDim.x) {
    const Span span(spans, number);
    const int per_group = static_cast<int>(spans.sizes.channels_per_group);
    const std::int64_t first_group = span.image * groups + span.first_channel / per_group;
    float part[Width] = {};
    span.for_packs<Width>(spans, [&](std::int64_t i) {
      const Pack<T, Width> from = load_pack<T, Width>(x + i);
      for (int k = 0; k < Width; ++k) part[k] += to_float(from.lane[k]);
    });
    fold_rows<Width>(spans, span, part, partial, totals);
    const auto added = [&](int c) { return in.added(span.image, channels, span.first_channel + c); };
    for_groups(
        spans, [&](int c) { return totals[c] + positions * added(c); },
        [&](int group, int c, float sum) {
          if (c % per_group == 0) mean[first_group + group] = sum / elements;
          by.centre[c] = sum / elements - added(c);
        });
    const OfPack<Width> centre(by.centre, span);
    float squares[Width] = {};
    span.for_packs<Width>(spans, [&](std::int64_t i) {
      const Pack<T, Width> from = load_pack<T, Width>(x + i);
      for (int k = 0; k < Width; ++k) {
        const float off = to_float(from.lane[k]) - centre[k];
        squares[k] += off * off;
      }
    });
    fold_rows<Width>(spans, span, squares, partial, totals);
    for_groups(
        spans, [&](int c) { return totals[c]; },
        [&](int group, int c, float sum) {
          const std::int64_t channel = span.first_channel + c;
          const float inverse = 1.0f / sqrtf(sum / elements + eps),
                      gain = in.gain(span.image, channels, channel);
          if (c % per_group == 0) inv_std[first_group + group] = inverse;
          by.factor[c] = inverse * in.weight[channel] * gain;
          by.shift[c] = in.bias[channel] * gain + in.shift(span.image, channels, channel);
        });
    const OfPack<Width> factor(by.factor, span), shift(by.shift, span);
    for_kept_packs<Width, then>(spans, span, dropout, [&](std::int64_t i, const auto& kept) {
      const Pack<T, Width> from = load_pack<T, Width>(x + i);
      Pack<T, Width> to;
      for (int k = 0; k < Width; ++k) {
        const float z = (to_float(from.lane[k]) - centre[k]) * factor[k] + shift[k];
        to.lane[k] = rounded<T>(kept(k, then == Then::nothing ? z : ops::Silu::value(z)));
      }
      store_pack(y + i, to);
    });
  }
}

/// The gradients of a span. parameters: [images, 2 channels], what each image adds to dweight, and to dbias.
template <class T>
struct NormGradients {
  const T* residual;  ///< null: absent
  T *dx, *daddend, *dscale_shift;
  float* parameters;
};

struct IntoParameters {
  std::int64_t channels;
  float *dweight, *dbias;
  bool accumulate;
  /// earlier: columns of earlier parts, each of them two channels of dweight or dbias.
  __device__ void operator()(std::int64_t earlier, std::int64_t column, const float* total) const {
    float* const to = earlier / 2 + (column < channels ? dweight + column : dbias + (column - channels));
    *to = accumulate ? *to + *total : *total;
  }
};

template <int Width, Then then, class T>
__global__ void __launch_bounds__(span_threads, 2)
    differentiate_spans(Spans spans, NormInputs<T> in, const T* x, const T* dy, const float* mean,
                        const float* inv_std, SpanDropout dropout, NormGradients<T> out) {
  __shared__ float partial[span_threads * max_width], of_g[max_span_channels], of_products[max_span_channels],
      of_normal[max_span_channels], slope[max_span_channels], offset[max_span_channels];
  __shared__ Coefficients by;
  const std::int64_t channels = spans.sizes.channels, groups = spans.sizes.groups;
  const int per_group = static_cast<int>(spans.sizes.channels_per_group);  // a 64-bit division is a call
  const auto positions = static_cast<float>(spans.sizes.positions),
             elements = positions * static_cast<float>(per_group);
  for (unsigned number = blockIdx.x; number < spans.count; number += gridDim.x) {
    const Span span(spans, number);
    const std::int64_t first_group = span.image * groups + span.first_channel / per_group;
    __syncthreads();  // the coefficients were read
    for (int c = static_cast<int>(threadIdx.x); c < spans.channels; c += span_threads) {
      const std::int64_t channel = span.first_channel + c, group = first_group + c / per_group;
      const float gain = in.gain(span.image, channels, channel);
      by.centre[c] = mean[group] - in.added(span.image, channels, channel);
      by.factor[c] = inv_std[group] * in.weight[channel] * gain;
      by.shift[c] = in.bias[channel] * gain + in.shift(span.image, channels, channel);
    }
    __syncthreads();
    const OfPack<Width> centre(by.centre, span), factor(by.factor, span), shift(by.shift, span);
    const auto gradient = [&](int k, float upstream, float off) {
      return then == Then::nothing ? upstream : upstream * ops::Silu::slope(off * factor[k] + shift[k]);
    };
    float part_g[Width] = {}, part_products[Width] = {}, part_off[Width] = {};
    for_kept_packs<Width, then>(spans, span, dropout, [&](std::int64_t i, const auto& kept) {
      const Pack<T, Width> from = load_pack<T, Width>(x + i), up = load_pack<T, Width>(dy + i);
      for (int k = 0; k < Width; ++k) {
        const float off = to_float(from.lane[k]) - centre[k],
                    g = gradient(k, kept(k, to_float(up.lane[k])), off);
        part_g[k] += g;
        part_products[k] += g * off;
        part_off[k] += off;
      }
    });
    fold_rows<Width>(spans, span, part_g, partial, of_g);
    fold_rows<Width>(spans, span, part_products, partial, of_products);
    if (out.daddend) fold_rows<Width>(spans, span, part_off, partial, of_normal);
    const auto weighted = [&](int c) {
      const std::int64_t channel = span.first_channel + c;
      return in.weight[channel] * in.gain(span.image, channels, channel);
    };
    for_groups(
        spans, [&](int c) { return weighted(c) * of_g[c]; },
        [&](int group, int c, float sum) { offset[c] = -inv_std[first_group + group] * sum / elements; });
    for_groups(
        spans, [&](int c) { return weighted(c) * of_products[c]; },
        [&](int group, int c, float sum) {
          const float inverse = inv_std[first_group + group];
          slope[c] = -inverse * inverse * inverse * sum / elements;
        });
    for (int c = static_cast<int>(threadIdx.x); c < spans.channels; c += span_threads) {
      const std::int64_t channel = span.first_channel + c, at = span.image * channels + channel;
      const float gain = in.gain(span.image, channels, channel),
                  products = of_products[c] * inv_std[first_group + c / per_group];
      float* const dweight = out.parameters + 2 * span.image * channels + channel;
      dweight[0] = gain * products;
      dweight[channels] = gain * of_g[c];
      if (out.dscale_shift) {
        T* const dscale = out.dscale_shift + 2 * span.image * channels + channel;
        dscale[0] = rounded<T>(in.weight[channel] * products + in.bias[channel] * of_g[c]);
        dscale[channels] = rounded<T>(of_g[c]);
      }
      if (out.daddend)
        out.daddend[at] =
            rounded<T>(by.factor[c] * of_g[c] + slope[c] * of_normal[c] + positions * offset[c]);
    }
    const OfPack<Width> slopes(slope, span), offsets(offset, span);
    for_kept_packs<Width, then>(spans, span, dropout, [&](std::int64_t i, const auto& kept) {
      const Pack<T, Width> from = load_pack<T, Width>(x + i), up = load_pack<T, Width>(dy + i);
      Pack<T, Width> more{}, to;
      if (out.residual) more = load_pack<T, Width>(out.residual + i);
      for (int k = 0; k < Width; ++k) {
        const float off = to_float(from.lane[k]) - centre[k],
                    g = gradient(k, kept(k, to_float(up.lane[k])), off);
        const float dx = g * factor[k] + (off * slopes[k] + offsets[k]);
        to.lane[k] = rounded<T>(out.residual ? dx + to_float(more.lane[k]) : dx);
      }
      store_pack(out.dx + i, to);
    });
  }
}

/// Calls body(T, width, spans) if own kernels can run the operation: channels last, groups that fit a block,
/// and dropout after SiLU only. Returns whether it did.
template <class Operation, class Body>
bool with_spans(const Operation& op, std::initializer_list<Tensor> operands, const Body& body) {
  if (op.x.channel_block() == 1 || op.x.numel() == 0) return false;
  if (op.p > 0 && !(op.silu && op.sizes().positions % 4 == 0)) return false;
  bool fits = false;
  by_type_of(op.x, [&]<class T>(T zero) {
    const ops::GroupSizes sizes = op.sizes();
    bool packs = sizes.channels % pack_width<T> == 0;
    for (const Tensor& operand : operands) packs = packs && (!operand || packs_at(operand.raw()));
    with_width<T>(packs, [&]<int width>(Width<width> packed) {
      const Spans spans(sizes, width, sizeof(T));
      fits = spans.channels > 0;
      if (fits) body(zero, packed, spans);
    });
  });
  return fits;
}

template <class T, class Operation>
NormInputs<T> inputs_of(const Operation& op) {
  return {data_or_null<T>(op.addend), data_or_null<T>(op.scale_shift), op.weight.template data<float>(),
          op.bias.template data<float>()};
}

template <class Operation>
SpanDropout dropout_of(CudaBackend& gpu, const Operation& op, int parts) {
  if (op.p == 0) return {.random = {Random({}), nullptr}};
  return {gpu.random(op.key), op.p, 1.0f / (1.0f - op.p), static_cast<unsigned>(op.x.size(0) / parts)};
}

/// run(What<then>)
template <Then then>
struct What {};
template <class Operation, class Run>
void by_what_follows(const Operation& op, const Run& run) {
  if (op.p > 0) return run(What<Then::silu_and_dropout>{});
  op.silu ? run(What<Then::silu>{}) : run(What<Then::nothing>{});
}

void normalise(CudaBackend& gpu, const ops::AdaptiveGroupNorm& op, int parts) {
  const bool ran = with_spans(op, {op.x, op.y}, [&]<class T, int width>(T, Width<width>, const Spans& spans) {
    const Launch on = gpu.launch();
    const unsigned grid = grid_for(std::int64_t{spans.count} * span_threads, span_threads, on);
    by_what_follows(op, [&]<Then then>(What<then>) {
      normalise_spans<width, then, T><<<grid, span_threads, 0, on.stream>>>(
          spans, inputs_of<T>(op), op.x.data<T>(), op.eps, dropout_of(gpu, op, parts), op.y.data<T>(),
          op.mean.data<float>(), op.inv_std.data<float>());
    });
  });
  if (ran) return;
  op.p > 0 ? norm_then_dropout(gpu, op, parts) : adaptive_group_norm(gpu, op);
}

void differentiate(CudaBackend& gpu, const ops::AdaptiveGroupNormBackward& op, int parts) {
  const auto backward = [&]<class T, int width>(T, Width<width>, const Spans& spans) {
    const Launch on = gpu.launch();
    const std::int64_t images = spans.sizes.images, channels = spans.sizes.channels;
    const Tensor parameters = gpu.scratch(2 * images * channels);
    const NormGradients<T> out{data_or_null<T>(op.residual_grad), op.dx.data<T>(),
                               data_or_null<T>(op.daddend), data_or_null<T>(op.dscale_shift),
                               parameters.data<float>()};
    const unsigned grid = grid_for(std::int64_t{spans.count} * span_threads, span_threads, on);
    by_what_follows(op, [&]<Then then>(What<then>) {
      differentiate_spans<width, then, T><<<grid, span_threads, 0, on.stream>>>(
          spans, inputs_of<T>(op), op.x.data<T>(), op.dy.data<T>(), op.mean.data<float>(),
          op.inv_std.data<float>(), dropout_of(gpu, op, parts), out);
    });
    const float* const by_image = parameters.data<float>();
    sum_columns<1, float, float>(
        gpu, images / parts, 2 * channels, sums_packs<float, float>(2 * channels, by_image),
        Elements<float>{by_image},
        IntoParameters{channels, op.dweight.data<float>(), op.dbias.data<float>(), op.accumulate}, parts);
  };
  if (with_spans(op, {op.x, op.dy, op.dx, op.residual_grad}, backward)) return;
  if (op.p > 0) return dropout_then_norm_backward(gpu, op, parts);
  if (parts == 1) return adaptive_group_norm_backward(gpu, op);
  gpu.run_each_part(op, parts);
}

}  // namespace

void enter_adaptive_norm(CudaBackend& gpu) { gpu.enter_parts<&normalise, &differentiate>(); }

}  // namespace lockstep::kernels
