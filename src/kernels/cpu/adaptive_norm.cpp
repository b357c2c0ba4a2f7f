// Adaptive group norm with SiLU, in any layout.
//
// An image is processed in spans of channels: the smallest of whole groups and whole channel blocks. Each
// pass over a span finds it in a cache: for its means, its variances and its result.
#include <cmath>
#include <numeric>

#include "kernels/compositions.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/formulas.h"
#include "ops/norm.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;

/// Whole groups in whole channel blocks of one image.
struct Span {
  std::int64_t image, first_block, blocks, first_group, groups;
};

/// Calls body(span) for all spans of all images that have elements, in parallel.
template <class Body>
void for_spans(int threads, const ChannelForm& form, const ops::GroupSizes& sizes, const Body& body) {
  const std::int64_t channels =
      form.padding() > 0 ? form.channels : std::lcm(form.lanes, sizes.channels_per_group);
  const std::int64_t spans = form.channels / channels, groups = sizes.groups / spans,
                     blocks = form.blocks / spans;
  parallel_items(threads, form.images * spans, elements_per_thread / (channels * form.positions),
                 [&](std::int64_t item) {
                   const std::int64_t span = item % spans;
                   body(Span{item / spans, span * blocks, blocks, span * groups, groups});
                 });
}

/// Calls body(tile) for the tiles of a span; a tile's first row counts from the begin of the tensor.
template <class Body>
void for_tiles_of(const ChannelForm& form, const Span& span, const Body& body) {
  for (std::int64_t block = span.first_block; block < span.first_block + span.blocks; ++block) {
    for (std::int64_t index = 0; index < tiles_per_block(form); ++index) {
      ChannelTile tile = tile_of(form, block, index);
      tile.first += (span.image * form.blocks + block) * form.run();
      body(tile);
    }
  }
}

/// Calls body(group, its first channel, its end channel) for the groups of a span.
template <class Body>
void for_groups(const ops::GroupSizes& sizes, const Span& span, const Body& body) {
  for (std::int64_t group = span.first_group; group < span.first_group + span.groups; ++group)
    body(group, group * sizes.channels_per_group, (group + 1) * sizes.channels_per_group);
}

/// The inputs that depend on the image, for one image.
class Conditions {
 public:
  template <class Operation>
  Conditions(const Operation& op, const ops::GroupSizes& sizes, std::int64_t image)
      : addend_(op.addend ? op.addend.template data<float>() + image * sizes.channels : nullptr),
        scale_(op.scale_shift ? op.scale_shift.template data<float>() + 2 * image * sizes.channels : nullptr),
        shift_(scale_ ? scale_ + sizes.channels : nullptr) {}

  float addend(std::int64_t c) const { return addend_ ? addend_[c] : 0.0f; }
  float gain(std::int64_t c) const { return scale_ ? 1.0f + scale_[c] : 1.0f; }
  /// The shift of silu's argument for the norm's bias.
  float shift(std::int64_t c, float bias) const { return scale_ ? std::fma(bias, gain(c), shift_[c]) : bias; }

 private:
  const float *addend_, *scale_, *shift_;
};

/// By channel of one image: silu's argument is (x - centre) factor + shift.
struct Coefficients {
  float *centre, *factor, *shift;

  void set(std::int64_t c, const Conditions& of, float weight, float bias, float inv_std) const {
    factor[c] = inv_std * weight * of.gain(c);
    shift[c] = of.shift(c, bias);
  }
};

/// The coefficients as columns of a tile.
struct CoefficientColumns {
  Columns32 centre, factor, shift;

  CoefficientColumns(const ChannelForm& form, const ChannelTile& tile, const Coefficients& of)
      : centre(columns_of(form, tile, of.centre)),
        factor(columns_of(form, tile, of.factor)),
        shift(columns_of(form, tile, of.shift)) {}

  float argument(float x, int column) const {
    const auto i = static_cast<std::size_t>(column);
    return std::fma(x - centre[i], factor[i], shift[i]);
  }
};

/// totals[channel] = the sum of terms.operator()<T>(offset, column) over the positions, for the channels of a
/// tile.
template <class Terms>
void sum_channels(const ChannelForm& form, const ChannelTile& tile, const Terms& terms, double* totals) {
  ColumnSums<1> sums{};
  add_columns<1>(tile, terms, sums);
  fold_columns<1>(form, tile, sums,
                  [&](std::int64_t channel, const std::array<double, 1>& sum) { totals[channel] = sum[0]; });
}

/// Mean and 1 / standard deviation of a span's groups, and its coefficients. totals: memory for one value per
/// channel.
void compute_statistics(const ops::AdaptiveGroupNorm& op, const ops::GroupSizes& sizes,
                        const ChannelForm& form, const Span& span, const Coefficients& to, double* totals) {
  const float *const x = op.x.data<float>(), *const weight = op.weight.data<float>(),
                     *const bias = op.bias.data<float>();
  float *const mean = op.mean.data<float>() + span.image * sizes.groups, *const inv_std =
                                                                             op.inv_std.data<float>() +
                                                                             span.image * sizes.groups;
  const Conditions conditions(op, sizes, span.image);
  const auto positions = static_cast<double>(sizes.positions),
             elements = static_cast<double>(sizes.group_elements());
  for_tiles_of(form, span, [&](const ChannelTile& tile) {
    sum_channels(
        form, tile, [x]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(x + at)}; }, totals);
  });
  for_groups(sizes, span, [&](std::int64_t group, std::int64_t first, std::int64_t end) {
    double sum = 0;
    for (std::int64_t c = first; c < end; ++c)
      sum += totals[c] + positions * static_cast<double>(conditions.addend(c));
    mean[group] = static_cast<float>(sum / elements);
    for (std::int64_t c = first; c < end; ++c) to.centre[c] = mean[group] - conditions.addend(c);
  });
  for_tiles_of(form, span, [&](const ChannelTile& tile) {
    const Columns32 centre = columns_of(form, tile, to.centre);
    sum_channels(
        form, tile,
        [x, &centre]<class T>(std::int64_t at, int column) {
          const T off = load<T>(x + at) - load<T>(centre.data() + column);
          return std::array<T, 1>{off * off};
        },
        totals);
  });
  for_groups(sizes, span, [&](std::int64_t group, std::int64_t first, std::int64_t end) {
    double sum = 0;
    for (std::int64_t c = first; c < end; ++c) sum += totals[c];
    inv_std[group] = 1.0f / std::sqrt(static_cast<float>(sum / elements) + op.eps);
    for (std::int64_t c = first; c < end; ++c) to.set(c, conditions, weight[c], bias[c], inv_std[group]);
  });
}

/// y = function(silu's argument) over a span.
template <class Function>
void apply(const ops::AdaptiveGroupNorm& op, const ChannelForm& form, const Span& span,
           const Coefficients& coefficients, const Function& function) {
  const float* const x = op.x.data<float>();
  float* const y = op.y.data<float>();
  for_tiles_of(form, span, [&](const ChannelTile& tile) {
    const CoefficientColumns of(form, tile, coefficients);
    for_rows(tile, [&](std::int64_t at, auto width) {
      const float* __restrict const from = x + at;
      float* __restrict const to = y + at;
      for (int column = 0; column < width; ++column) to[column] = function(of.argument(from[column], column));
    });
  });
}

/// By channel of one image: sums over its positions of the gradient g of silu's argument, of g times the
/// normalised h, and of dx.
struct GradientSums {
  double *of_g, *of_products, *of_dx;
};

/// The sums of g and of its products. With silu, g is written to dx; otherwise g is dy.
void sum_gradients(const ops::AdaptiveGroupNormBackward& op, const ops::GroupSizes& sizes,
                   const ChannelForm& form, const Span& span, const Coefficients& coefficients,
                   const GradientSums& sums) {
  const float *const x = op.x.data<float>(), *const dy = op.dy.data<float>();
  float* const dx = op.dx.data<float>();
  const float* const g = op.silu ? dx : dy;
  for_tiles_of(form, span, [&](const ChannelTile& tile) {
    const CoefficientColumns of(form, tile, coefficients);
    if (op.silu)
      for_rows(tile, [&](std::int64_t at, auto width) {
        const float* __restrict const from = x + at, * __restrict const up = dy + at;
        float* __restrict const to = dx + at;
        for (int column = 0; column < width; ++column)
          to[column] = up[column] * ops::Silu::slope(of.argument(from[column], column));
      });
    ColumnSums<2> totals{};
    add_columns<2>(
        tile,
        [=, &of]<class T>(std::int64_t at, int column) {
          const T up = load<T>(g + at);
          return std::array<T, 2>{up, up * (load<T>(x + at) - load<T>(of.centre.data() + column))};
        },
        totals);
    fold_columns<2>(form, tile, totals, [&](std::int64_t c, const std::array<double, 2>& sum) {
      sums.of_g[c] = sum[0];
      sums.of_products[c] = sum[1];
    });
  });
  const float* const inv_std = op.inv_std.data<float>() + span.image * sizes.groups;
  for_groups(sizes, span, [&](std::int64_t group, std::int64_t first, std::int64_t end) {
    for (std::int64_t c = first; c < end; ++c) sums.of_products[c] *= static_cast<double>(inv_std[group]);
  });
}

/// dx = g factor + (x - centre) slope + offset, plus the residual gradient, over a span. The coefficients'
/// shift holds `offset`.
void write_input_gradient(const ops::AdaptiveGroupNormBackward& op, const ChannelForm& form, const Span& span,
                          const Coefficients& coefficients, const float* slope, double* sums_of_dx) {
  const float *const x = op.x.data<float>(), *const dy = op.dy.data<float>(),
                     *const residual = op.residual_grad ? op.residual_grad.data<float>() : nullptr;
  float* const dx = op.dx.data<float>();
  for_tiles_of(form, span, [&](const ChannelTile& tile) {
    const CoefficientColumns of(form, tile, coefficients);
    const Columns32 slopes = columns_of(form, tile, slope);
    const auto through_statistics = [&](float value, int column) {
      const auto i = static_cast<std::size_t>(column);
      return std::fma(value - of.centre[i], slopes[i], of.shift[i]);
    };
    for_rows(tile, [&](std::int64_t at, auto width) {
      const float* __restrict const from = x + at, * __restrict const up = dy + at;
      float* __restrict const to = dx + at;
      const auto write = [&](int column, float g) {
        to[column] = std::fma(g, of.factor[static_cast<std::size_t>(column)],
                              through_statistics(from[column], column));
      };
      if (op.silu) {
        for (int column = 0; column < width; ++column) write(column, to[column]);
      } else {
        for (int column = 0; column < width; ++column) write(column, up[column]);
      }
    });
    if (op.daddend)
      sum_channels(
          form, tile, [dx]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(dx + at)}; },
          sums_of_dx);
    if (!residual) return;
    for_rows(tile, [&](std::int64_t at, auto width) {
      const float* __restrict const more = residual + at;
      float* __restrict const to = dx + at;
      for (int column = 0; column < width; ++column) to[column] += more[column];
    });
  });
}

/// The gradients per channel, from the sums of all images.
void write_channel_gradients(const ops::AdaptiveGroupNormBackward& op, const ops::GroupSizes& sizes,
                             const GradientSums& sums) {
  const float *const weight = op.weight.data<float>(), *const bias = op.bias.data<float>();
  for (std::int64_t image = 0; image < sizes.images; ++image) {
    for (std::int64_t c = 0; c < sizes.channels; ++c) {
      const std::int64_t at = image * sizes.channels + c;
      if (op.daddend) op.daddend.data<float>()[at] = static_cast<float>(sums.of_dx[at]);
      if (!op.dscale_shift) continue;
      float* const dscale = op.dscale_shift.data<float>() + 2 * image * sizes.channels;
      dscale[c] = static_cast<float>(static_cast<double>(weight[c]) * sums.of_products[at] +
                                     static_cast<double>(bias[c]) * sums.of_g[at]);
      dscale[sizes.channels + c] = static_cast<float>(sums.of_g[at]);
    }
  }
  float *const dweight = op.dweight.data<float>(), *const dbias = op.dbias.data<float>();
  for (std::int64_t c = 0; c < sizes.channels; ++c) {
    double of_weight = 0, of_bias = 0;
    for (std::int64_t image = 0; image < sizes.images; ++image) {
      const auto gain = static_cast<double>(Conditions(op, sizes, image).gain(c));
      of_weight += gain * sums.of_products[image * sizes.channels + c];
      of_bias += gain * sums.of_g[image * sizes.channels + c];
    }
    dweight[c] = static_cast<float>(of_weight) + (op.accumulate ? dweight[c] : 0.0f);
    dbias[c] = static_cast<float>(of_bias) + (op.accumulate ? dbias[c] : 0.0f);
  }
}

/// Memory for coefficients of all images: `rows` for each channel of an image.
struct CoefficientSpace {
  Tensor memory;
  std::int64_t row;

  CoefficientSpace(CpuBackend& cpu, const ops::GroupSizes& sizes, int rows)
      : memory(cpu.scratch(rows * sizes.images * sizes.channels)), row(sizes.images * sizes.channels) {}

  float* at(int number, std::int64_t first) const { return memory.data<float>() + number * row + first; }
  Coefficients of(std::int64_t first) const { return {at(0, first), at(1, first), at(2, first)}; }
};

void normalise(CpuBackend& cpu, const ops::AdaptiveGroupNorm& op) {
  const ops::GroupSizes sizes = op.sizes();
  if (sizes.images * sizes.group_elements() == 0) return;
  const ChannelForm form = image_form(op.x);
  const CoefficientSpace space(cpu, sizes, 3);
  const Tensor totals = cpu.scratch(space.row, DType::float64);
  for_spans(cpu.threads(), form, sizes, [&](const Span& span) {
    const std::int64_t first = span.image * sizes.channels;
    const Coefficients coefficients = space.of(first);
    compute_statistics(op, sizes, form, span, coefficients, totals.data<double>() + first);
    if (op.silu)
      apply(op, form, span, coefficients, [](float z) { return ops::Silu::value(z); });
    else
      apply(op, form, span, coefficients, [](float z) { return z; });
  });
  zero_padding(op.y);
}

void differentiate(CpuBackend& cpu, const ops::AdaptiveGroupNormBackward& op) {
  const ops::GroupSizes sizes = op.sizes();
  const ChannelForm form = image_form(op.x);
  const CoefficientSpace space(cpu, sizes, 4);
  const Tensor sums_holder = cpu.scratch(3 * space.row, DType::float64);
  double* const first_sum = sums_holder.data<double>();
  const auto sums_from = [&](std::int64_t first) {
    return GradientSums{first_sum + first, first_sum + space.row + first, first_sum + 2 * space.row + first};
  };
  const float *const weight = op.weight.data<float>(), *const bias = op.bias.data<float>();
  if (sizes.images * sizes.group_elements() == 0) {
    std::fill_n(first_sum, 3 * space.row, 0.0);
    return write_channel_gradients(op, sizes, sums_from(0));
  }
  for_spans(cpu.threads(), form, sizes, [&](const Span& span) {
    const std::int64_t first = span.image * sizes.channels;
    const float *const mean = op.mean.data<float>() + span.image * sizes.groups,
                       *const inv_std = op.inv_std.data<float>() + span.image * sizes.groups;
    const Conditions conditions(op, sizes, span.image);
    const Coefficients coefficients = space.of(first);
    float* const slope = space.at(3, first);
    for_groups(sizes, span, [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        coefficients.centre[c] = mean[group] - conditions.addend(c);
        coefficients.set(c, conditions, weight[c], bias[c], inv_std[group]);
      }
    });
    const GradientSums sums = sums_from(first);
    sum_gradients(op, sizes, form, span, coefficients, sums);
    const auto elements = static_cast<double>(sizes.group_elements());
    for_groups(sizes, span, [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
      double of_g = 0, of_products = 0;
      for (std::int64_t c = begin; c < end; ++c) {
        const auto gain = static_cast<double>(weight[c] * conditions.gain(c));
        of_g += gain * sums.of_g[c];
        of_products += gain * sums.of_products[c];
      }
      const auto inverse = static_cast<double>(inv_std[group]);
      std::fill(coefficients.shift + begin, coefficients.shift + end,
                static_cast<float>(-of_g / elements * inverse));
      std::fill(slope + begin, slope + end, static_cast<float>(-of_products / elements * inverse * inverse));
    });
    write_input_gradient(op, form, span, coefficients, slope, sums.of_dx);
  });
  zero_padding(op.dx);
  write_channel_gradients(op, sizes, sums_from(0));
}

/// Dropout reads and writes rounded elements; the norm alone computes in float32.
template <auto norm, auto composition, class Operation>
void with_dropout(CpuBackend& cpu, const Operation& op) {
  if (op.p > 0) return composition(cpu, op, 1);
  if (!ops::AnyOperation(op).has_bf16()) return norm(cpu, op);
  run_on_float32_copies<norm>(cpu, op);
}

}  // namespace

void enter_adaptive_norm(CpuBackend& cpu) {
  cpu.enter<&with_dropout<&normalise, &norm_then_dropout, ops::AdaptiveGroupNorm>,
            &with_dropout<&differentiate, &dropout_then_norm_backward, ops::AdaptiveGroupNormBackward>>();
}

}  // namespace lockstep::kernels
