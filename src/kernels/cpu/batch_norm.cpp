// Batch norm in its parts: sums per channel, and the passes that use them. Also the gradient of a bias per
// channel, which is one of those sums.
#include "lockstep/ops/batch_norm.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 14;

std::int64_t runs_per_thread(const ChannelForm& form) {
  return std::max<std::int64_t>(1, elements_per_thread / std::max<std::int64_t>(1, form.run()));
}

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

/// make_body(tile) -> body for for_rows, over every run.
template <class MakeBody>
void map_channels(int threads, const ChannelForm& form, const MakeBody& make_body) {
  const std::int64_t tiles = tiles_per_block(form);
  parallel_items(threads, form.runs(), runs_per_thread(form), [&](std::int64_t run) {
    for (std::int64_t tile_index = 0; tile_index < tiles; ++tile_index) {
      ChannelTile tile = tile_of(form, run % form.blocks, tile_index);
      const auto body = make_body(tile);
      tile.first += run * form.run();
      for_rows(tile, body);
    }
  });
}

/// The arguments of a batch norm.
struct NormalisedBy {
  const Tensor &x, &mean, &inv_std, &weight, &bias;
};

/// What normalises one tile's columns.
struct Scale {
  Columns32 mean, factor, bias;

  /// T: float or Floats.
  template <class T>
  T operator()(T x, int column) const {
    return (x - load<T>(mean.data() + column)) * load<T>(factor.data() + column) +
           load<T>(bias.data() + column);
  }
};

/// Makes the Scale of each tile.
struct ScaleOf {
  ScaleOf(const ChannelForm& form_, const NormalisedBy& by)
      : form(form_),
        means(by.mean.data<float>()),
        inv_stds(by.inv_std.data<float>()),
        weights(by.weight ? by.weight.data<float>() : nullptr),
        biases(by.bias ? by.bias.data<float>() : nullptr) {}

  float factor_of(std::int64_t c) const { return weights ? inv_stds[c] * weights[c] : inv_stds[c]; }
  Scale operator()(const ChannelTile& tile) const {
    return {columns_of(form, tile, [&](std::int64_t c) { return means[c]; }),
            columns_of(form, tile, [&](std::int64_t c) { return factor_of(c); }),
            columns_of(form, tile, [&](std::int64_t c) { return biases ? biases[c] : 0.0f; })};
  }

  ChannelForm form;
  const float *means, *inv_stds, *weights, *biases;
};

float relu(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays

/// The slope of the ReLU, by its argument or its value. T: float or Floats.
template <class T>
T relu_slope(T at) {
  const T zero{}, one = zero + 1.0f;
  return at > zero ? one : zero;
}

/// y = finish(normalised x, its place). E: of x and y.
template <class E, class Finish>
void normalise(int threads, const NormalisedBy& by, const Tensor& y, const Finish& finish) {
  const ChannelForm form = channel_form(by.x);
  const E* from = by.x.data<E>();
  E* to = y.data<E>();
  const ScaleOf scale_of(form, by);
  map_channels(threads, form, [&](const ChannelTile& tile) {
    return [from, to, finish, scale = scale_of(tile)](std::int64_t at, auto width) {
      const E* __restrict in = from + at;
      E* __restrict out = to + at;
      for (int c = 0; c < static_cast<int>(width); ++c) put(out[c], finish(scale(widened(in[c]), c), at + c));
    };
  });
}

/// sums [2, C]: of g and of g (x - mean) inv_std, g what make_gradient(tile) -> gradient gives for
/// (place, column, x there), of type float or Floats. E: of x.
template <class E, class MakeGradient>
void backward_sums(int threads, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                   const Tensor& sums, const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(dy);
  const E* from = x.data<E>();
  const float* means = mean.data<float>();
  const float* inv_stds = inv_std.data<float>();
  double* to = sums.data<double>();
  reduce_channels<2>(
      threads, form,
      [&](const ChannelTile& tile) {
        return [from, gradient = make_gradient(tile), mean_of = columns_of(form, tile, [&](std::int64_t c) {
                                                        return means[c];
                                                      })]<class T>(std::int64_t at, int column) {
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

/// compute.operator()<T>(place, column) for the elements of a row, for T float or Floats (8 columns at once).
template <class Width, class Compute>
void for_columns(std::int64_t at, Width width, const Compute& compute) {
  if constexpr (std::is_same_v<Width, int>) {
    for (int c = 0; c < width; ++c) compute.template operator()<float>(at + c, c);
  } else {
    for (int c = 0; c < width; c += vector_lanes) compute.template operator()<Floats>(at + c, c);
  }
}

/// dx of batch_norm_backward_input for g in place of dy; make_gradient(tile) -> g.operator()<T>(place,
/// column), of type T, float or Floats. E: of x and dx.
template <class E, class MakeGradient>
void backward_input(int threads, const Tensor& dy, const NormalisedBy& by, const Tensor& sums,
                    const Tensor& counted, const Tensor& dx, const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(dy);
  E* to = dx.data<E>();
  const ScaleOf scale_of(form, by);
  const auto factor_of = [&](std::int64_t c) { return scale_of.factor_of(c); };
  const double count = counted ? *counted.data<double>() : 0;
  if (count == 0) {
    map_channels(threads, form, [&](const ChannelTile& tile) {
      return [to, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of)](
                 std::int64_t row, auto width) {
        for_columns(row, width, [&]<class T>(std::int64_t at, int c) {
          store(to + at, gradient.template operator()<T>(at, c) * load<T>(factor.data() + c));
        });
      };
    });
    return;
  }
  const E* from = by.x.data<E>();
  const double* pairs = sums.data<double>();
  map_channels(threads, form, [&](const ChannelTile& tile) {
    const auto mean_gradient = [&](std::int64_t c) { return static_cast<float>(pairs[c] / count); };
    const auto slope = [&](std::int64_t c) {
      return static_cast<float>(pairs[form.channels + c] / count * static_cast<double>(scale_of.inv_stds[c]));
    };
    return [to, from, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of),
            mean_of = columns_of(form, tile, [&](std::int64_t c) { return scale_of.means[c]; }),
            mean_dy = columns_of(form, tile, mean_gradient),
            slope_of = columns_of(form, tile, slope)](std::int64_t row, auto width) {
      for_columns(row, width, [&]<class T>(std::int64_t at, int c) {
        const auto of = [c](const Columns32& columns) { return load<T>(columns.data() + c); };
        const T centred = gradient.template operator()<T>(at, c) - of(mean_dy);
        store(to + at, of(factor) * (centred - (load<T>(from + at) - of(mean_of)) * of(slope_of)));
      });
    };
  });
}

}  // namespace

void channel_moments(CpuBackend& cpu, const ops::ChannelMoments& op) {
  const ChannelForm form = channel_form(op.x);
  const float* centres = op.centre.data<float>();
  double* to = op.moments.data<double>();
  by_type_of(op.x, [&]<class E>(E) {
    const E* from = op.x.data<E>();
    reduce_channels<2>(
        cpu.threads(), form,
        [&](const ChannelTile& tile) {
          return [from, centre_of = columns_of(form, tile, [&](std::int64_t channel) {
                          return centres[channel];
                        })]<class T>(std::int64_t at, int column) {
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
    normalise<E>(cpu.threads(), {op.x, op.mean, op.inv_std, op.weight, op.bias}, op.y,
                 [](float value, std::int64_t) { return value; });
  });
}

void batch_norm_relu(CpuBackend& cpu, const ops::BatchNormRelu& op) {
  const NormalisedBy by{op.x, op.mean, op.inv_std, op.weight, op.bias};
  by_type_of(op.x, [&]<class E>(E) {
    if (!op.shortcut)
      return normalise<E>(cpu.threads(), by, op.y, [](float v, std::int64_t) { return relu(v); });
    normalise<E>(cpu.threads(), by, op.y, [added = op.shortcut.data<E>()](float value, std::int64_t at) {
      return relu(value + widened(added[at]));
    });
  });
}

void batch_norm_backward_sums(CpuBackend& cpu, const ops::BatchNormBackwardSums& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    const E* gradient = op.dy.data<E>();
    backward_sums<E>(cpu.threads(), op.dy, op.x, op.mean, op.inv_std, op.sums, [&](const ChannelTile&) {
      return [gradient]<class T>(std::int64_t at, int, T) { return load<T>(gradient + at); };
    });
  });
}

void batch_norm_relu_backward_sums(CpuBackend& cpu, const ops::BatchNormReluBackwardSums& op) {
  const ScaleOf scale_of(channel_form(op.x), {op.x, op.mean, op.inv_std, op.weight, op.bias});
  by_type_of(op.dy, [&]<class E>(E) {
    const E* gradient = op.dy.data<E>();
    backward_sums<E>(cpu.threads(), op.dy, op.x, op.mean, op.inv_std, op.sums, [&](const ChannelTile& tile) {
      return [gradient, scale = scale_of(tile)]<class T>(std::int64_t at, int column, T x_here) {
        return load<T>(gradient + at) * relu_slope(scale(x_here, column));
      };
    });
  });
}

// What is stored is rounded, and the sums are of that, as by the operations one by one: a part that is
// computed again in the backward may take them apart (model.recompute).
void batch_norm_gated_backward_sums(CpuBackend& cpu, const ops::BatchNormGatedBackwardSums& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    const E *gradient = op.dy.data<E>(), *value = op.y.data<E>();
    E* to = op.gated.data<E>();
    const auto run = [&](const auto& upstream) {
      backward_sums<E>(cpu.threads(), op.dy, op.x, op.mean, op.inv_std, op.sums, [&](const ChannelTile&) {
        return [upstream, value, to]<class T>(std::int64_t at, int, T) {
          store(to + at, upstream.template operator()<T>(at) * relu_slope(load<T>(value + at)));
          return load<T>(to + at);
        };
      });
    };
    if (!op.beside) return run([gradient]<class T>(std::int64_t at) { return load<T>(gradient + at); });
    run([gradient, second = op.beside.data<E>()]<class T>(std::int64_t at) {
      return load<T>(gradient + at) + load<T>(second + at);
    });
  });
}

void batch_norm_backward_input(CpuBackend& cpu, const ops::BatchNormBackwardInput& op) {
  by_type_of(op.dy, [&]<class E>(E) {
    const E* gradient = op.dy.data<E>();
    backward_input<E>(cpu.threads(), op.dy, {op.x, op.mean, op.inv_std, op.weight, {}}, op.sums, op.count,
                      op.dx, [&](const ChannelTile&) {
                        return [gradient]<class T>(std::int64_t at, int) { return load<T>(gradient + at); };
                      });
  });
}

void batch_norm_relu_backward_input(CpuBackend& cpu, const ops::BatchNormReluBackwardInput& op) {
  const NormalisedBy by{op.x, op.mean, op.inv_std, op.weight, op.bias};
  const ScaleOf scale_of(channel_form(op.x), by);
  by_type_of(op.dy, [&]<class E>(E) {
    const E *gradient = op.dy.data<E>(), *from = op.x.data<E>();
    backward_input<E>(cpu.threads(), op.dy, by, op.sums, op.count, op.dx, [&](const ChannelTile& tile) {
      return [gradient, from, scale = scale_of(tile)]<class T>(std::int64_t at, int column) {
        return load<T>(gradient + at) * relu_slope(scale(load<T>(from + at), column));
      };
    });
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

void enter_batch_norm(CpuBackend& cpu) {
  cpu.enter<&channel_sums>();
  cpu.enter<&channel_moments>();
  cpu.enter<&batch_norm>();
  cpu.enter<&batch_norm_backward_sums>();
  cpu.enter<&batch_norm_backward_input>();
  cpu.enter<&batch_norm_relu>();
  cpu.enter<&batch_norm_relu_backward_sums>();
  cpu.enter<&batch_norm_relu_backward_input>();
  cpu.enter<&batch_norm_gated_backward_sums>();
}

}  // namespace lockstep::kernels
