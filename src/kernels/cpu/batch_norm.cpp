// Batch norm in its parts: sums per channel, and the passes that use them. Also the gradient of a bias per
// channel, which is one of those sums.
#include <limits>

#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/convolution.h"
#include "ops/batch_norm.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 14;

/// The sums of each channel over all images, in the order of the images. make_terms(columns of the tile) ->
/// terms for add_columns, whose offsets count from the beginning of the tensor.
template <int sums, class MakeTerms, class Receive>
void reduce_channels(int threads, const ChannelForm& form, const MakeTerms& make_terms,
                     const Receive& receive) {
  const std::int64_t tiles = tiles_per_block(form);
  parallel_items(threads, form.blocks * tiles, 1, [&](std::int64_t item) {
    const std::int64_t block = item / tiles;
    const ChannelTile tile = tile_of(form, block, item % tiles);
    const auto terms = make_terms(tile);
    ColumnSums<sums> totals{};
    for (std::int64_t image = 0; image < form.images; ++image) {
      ChannelTile placed = tile;
      placed.first += (image * form.blocks + block) * form.run();
      add_columns<sums>(placed, terms, totals);
    }
    fold_columns<sums>(form, tile, totals, receive);
  });
}

/// make_body(tile) -> body for for_rows(), over every run.
template <class MakeBody>
void map_channels(int threads, const ChannelForm& form, const MakeBody& make_body) {
  for_tiles(threads, form, elements_per_thread, [&](std::int64_t run, ChannelTile tile) {
    const auto body = make_body(tile);
    tile.first += run * form.run();
    for_rows(tile, body);
  });
}

/// The normalisation of one tile's columns.
struct Scale {
  Columns32 mean, factor, bias;

  /// T: float or Floats.
  template <class T>
  T operator()(T x, int column) const {
    return (x - load<T>(mean.data() + column)) * load<T>(factor.data() + column) +
           load<T>(bias.data() + column);
  }
};

/// Returns the Scale of each tile.
struct ScaleOf {
  ScaleOf(const ChannelForm& form_, const ops::ChannelNorm& by)
      : form(form_),
        means(by.mean.data<float>()),
        inv_stds(by.inv_std.data<float>()),
        weights(by.weight ? by.weight.data<float>() : nullptr),
        biases(by.bias ? by.bias.data<float>() : nullptr) {}

  float factor_of(std::int64_t c) const { return weights ? inv_stds[c] * weights[c] : inv_stds[c]; }
  Scale operator()(const ChannelTile& tile) const {
    return {columns_of(form, tile, means),
            columns_of(form, tile, [&](std::int64_t c) { return factor_of(c); }),
            columns_of(form, tile, [&](std::int64_t c) { return biases ? biases[c] : 0.0f; })};
  }

  ChannelForm form;
  const float *means, *inv_stds, *weights, *biases;
};

/// The slope of the ReLU, from its argument or its value. T: float or Floats.
template <class T>
T relu_slope(T at) {
  const T zero{}, one = zero + 1.0f;
  return at > zero ? one : zero;
}

/// y = max(min, finish(normalised x, its position)). E: the type of x and y.
template <class E, class Finish>
void normalise(int threads, const ops::BatchNorm& op, const Finish& finish) {
  const ChannelForm form = channel_form(op.x);
  const E* from = op.x.data<E>();
  E* to = op.y.data<E>();
  const ScaleOf scale_of(form, op.norm);
  const float min = op.relu ? 0.0f : -std::numeric_limits<float>::infinity();
  map_channels(threads, form, [&](const ChannelTile& tile) {
    return [from, to, finish, min, scale = scale_of(tile)](std::int64_t at, auto width) {
      const E* __restrict in = from + at;
      E* __restrict out = to + at;
      for (int c = 0; c < static_cast<int>(width); ++c) {
        const float value = finish(scale(to_float(in[c]), c), at + c);
        store(out[c], value < min ? min : value);  // NaN stays
      }
    };
  });
}

/// Calls body(make_gradient): make_gradient(tile) returns a gradient. gradient.operator()<T>(position,
/// column, x there), of type T, float or Floats, is dy, or dy masked by the ReLU. E: the type of dy.
template <class E, class Op, class Body>
void with_gradient(const Op& op, const Body& body) {
  const E* from = op.dy.template data<E>();
  if (!op.relu)
    return body([from](const ChannelTile&) {
      return [from]<class T>(std::int64_t at, int, T) { return load<T>(from + at); };
    });
  body([from, scale_of = ScaleOf(channel_form(op.x), op.norm)](const ChannelTile& tile) {
    return [from, scale = scale_of(tile)]<class T>(std::int64_t at, int column, T x_here) {
      return load<T>(from + at) * relu_slope(scale(x_here, column));
    };
  });
}

/// sums [2, C]: of g and of g (x - mean) inv_std, with g from with_gradient(). E: the type of x.
template <class E, class MakeGradient>
void backward_sums(int threads, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                   const Tensor& sums, const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(x);
  const E* from = x.data<E>();
  const float* means = mean.data<float>();
  const float* inv_stds = inv_std.data<float>();
  double* to = sums.data<double>();
  reduce_channels<2>(
      threads, form,
      [&](const ChannelTile& tile) {
        return [from, gradient = make_gradient(tile), mean_of = columns_of(form, tile, means)]<class T>(
                   std::int64_t at, int column) {
          const T x_here = load<T>(from + at);
          const T here = gradient.template operator()<T>(at, column, x_here);
          return std::array<T, 2>{here, here * (x_here - load<T>(mean_of.data() + column))};
        };
      },
      [&](std::int64_t channel, const std::array<double, 2>& channel_sums) {
        to[channel] = channel_sums[0];
        to[form.channels + channel] = channel_sums[1] * static_cast<double>(inv_stds[channel]);
      });
}

/// Calls compute.operator()<T>(position, column) for the elements of a row, with T float or Floats (8 columns
/// at once).
template <class Width, class Compute>
void for_columns(std::int64_t at, Width width, const Compute& compute) {
  if constexpr (std::is_same_v<Width, int>) {
    for (int c = 0; c < width; ++c) compute.template operator()<float>(at + c, c);
  } else {
    for (int c = 0; c < width; c += vector_lanes) compute.template operator()<Floats>(at + c, c);
  }
}

/// dx for the gradient of with_gradient() in place of dy. E: the type of x and dx.
template <class E, class MakeGradient>
void backward_input(int threads, const ops::BatchNormBackwardInput& op, const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(op.dy);
  const E* from = op.x.data<E>();
  E* to = op.dx.data<E>();
  const ScaleOf scale_of(form, op.norm);
  const auto factor_of = [&](std::int64_t c) { return scale_of.factor_of(c); };
  const double count = op.count ? *op.count.data<double>() : 0;
  if (count == 0) {
    map_channels(threads, form, [&](const ChannelTile& tile) {
      return [to, from, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of)](
                 std::int64_t row, auto width) {
        for_columns(row, width, [&]<class T>(std::int64_t at, int c) {
          const T here = gradient.template operator()<T>(at, c, load<T>(from + at));
          store(to + at, here * load<T>(factor.data() + c));
        });
      };
    });
    return;
  }
  const double* pairs = op.sums.data<double>();
  map_channels(threads, form, [&](const ChannelTile& tile) {
    const auto mean_gradient = [&](std::int64_t c) { return static_cast<float>(pairs[c] / count); };
    const auto slope = [&](std::int64_t c) {
      return static_cast<float>(pairs[form.channels + c] / count * static_cast<double>(scale_of.inv_stds[c]));
    };
    return [to, from, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of),
            mean_of = columns_of(form, tile, scale_of.means), mean_dy = columns_of(form, tile, mean_gradient),
            slope_of = columns_of(form, tile, slope)](std::int64_t row, auto width) {
      for_columns(row, width, [&]<class T>(std::int64_t at, int c) {
        const auto of = [c](const Columns32& columns) { return load<T>(columns.data() + c); };
        const T x_here = load<T>(from + at);
        const T centred = gradient.template operator()<T>(at, c, x_here) - of(mean_dy);
        store(to + at, of(factor) * (centred - (x_here - of(mean_of)) * of(slope_of)));
      });
    };
  });
}

}  // namespace

void channel_moments(CpuBackend& cpu, const ops::ChannelMoments& op) {
  const ChannelForm form = channel_form(op.x);
  const float* centres = op.centre.data<float>();
  double* to = op.total.data<double>();
  to[2 * form.channels] = static_cast<double>(op.count());
  by_type_of(op.x, [&]<class E>(E) {
    const E* from = op.x.data<E>();
    reduce_channels<2>(
        cpu.threads(), form,
        [&](const ChannelTile& tile) {
          return [from, centre_of = columns_of(form, tile, centres)]<class T>(std::int64_t at, int column) {
            const T distance = load<T>(from + at) - load<T>(centre_of.data() + column);
            return std::array<T, 2>{distance, distance * distance};
          };
        },
        [&](std::int64_t channel, const std::array<double, 2>& sums) {
          to[channel] = sums[0];
          to[form.channels + channel] = sums[1];
        });
  });
}

void batch_norm(CpuBackend& cpu, const ops::BatchNorm& op) {
  by_type_of(op.x, [&]<class E>(E) {
    if (!op.shortcut) return normalise<E>(cpu.threads(), op, [](float value, std::int64_t) { return value; });
    normalise<E>(cpu.threads(), op, [added = op.shortcut.data<E>()](float value, std::int64_t at) {
      return value + to_float(added[at]);
    });
  });
}

void batch_norm_backward_sums(CpuBackend& cpu, const ops::BatchNormBackwardSums& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    with_gradient<E>(op, [&](const auto& make_gradient) {
      backward_sums<E>(cpu.threads(), op.x, op.norm.mean, op.norm.inv_std, op.sums, make_gradient);
    });
  });
}

// Stores rounded values and sums those, as the separate operations do: a part that is computed again in the
// backward may run them separately (model.recompute).
void batch_norm_gated_backward_sums(CpuBackend& cpu, const ops::BatchNormGatedBackwardSums& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    const E *gradient = op.dy.data<E>(), *value = op.y.data<E>();
    E* to = op.gated.data<E>();
    const auto run = [&](const auto& upstream) {
      backward_sums<E>(cpu.threads(), op.x, op.mean, op.inv_std, op.sums, [&](const ChannelTile&) {
        return [upstream, value, to]<class T>(std::int64_t at, int, T) {
          store(to + at, upstream.template operator()<T>(at) * relu_slope(load<T>(value + at)));
          return load<T>(to + at);
        };
      });
    };
    if (!op.second_grad) return run([gradient]<class T>(std::int64_t at) { return load<T>(gradient + at); });
    run([gradient, second = op.second_grad.data<E>()]<class T>(std::int64_t at) {
      return load<T>(gradient + at) + load<T>(second + at);
    });
  });
}

void batch_norm_backward_input(CpuBackend& cpu, const ops::BatchNormBackwardInput& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    with_gradient<E>(op,
                     [&](const auto& make_gradient) { backward_input<E>(cpu.threads(), op, make_gradient); });
  });
}

void channel_sums(CpuBackend& cpu, const ops::ChannelSums& op) {
  const ChannelForm form = channel_form(op.dy);
  const bool accumulate = op.accumulate;
  float* to = op.dbias.data<float>();
  by_type_of(op.dy, [&]<class E>(E) {
    const E* gradient = op.dy.data<E>();
    reduce_channels<1>(
        cpu.threads(), form,
        [&](const ChannelTile&) {
          return
              [gradient]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(gradient + at)}; };
        },
        [&](std::int64_t channel, const std::array<double, 1>& sums) {
          const auto sum = static_cast<float>(sums[0]);
          to[channel] = accumulate ? to[channel] + sum : sum;
        });
  });
}

namespace {

template <class Item, class Operation>
void each_item(CpuBackend&, const Operation& op) {
  const Item item(op);
  for (std::int64_t i = 0; i < item.items(); ++i) item(i);
}

void moments_lack_digits(CpuBackend&, const ops::MomentsLackDigits& op) {
  // float32 parts carry a relative error of 1e-7 of (distance^2 + variance).
  constexpr double squared_distance_limit = 16;  // in variances
  const ops::TotalMoments moments(op.total, (op.total.numel() - 1) / 2);
  const double n = moments.count();
  *op.lack = false;
  if (!(n > 0)) return;
  for (std::int64_t c = 0; c < moments.channels; ++c) {
    const double distance = moments.sum(c) / n;
    const double variance = moments.squares(c) / n - distance * distance;
    if (!(distance * distance <= squared_distance_limit * (variance + op.eps))) *op.lack = true;
  }
}

}  // namespace

void enter_batch_norm(CpuBackend& cpu) {
  cpu.enter<&channel_sums, &channel_moments, &batch_norm, &batch_norm_backward_sums,
            &batch_norm_backward_input, &batch_norm_gated_backward_sums>();
  cpu.enter<&moments_lack_digits, &each_item<ops::BatchStatisticsItem, ops::BatchStatistics>,
            &each_item<ops::MoveCentreItem, ops::MoveCentre>,
            &each_item<ops::UpdateRunningItem, ops::UpdateRunning>>();
}

}  // namespace lockstep::kernels
