// Batch norm in its parts: sums per channel, and the passes that use them. Also the gradient of a bias per
// channel, which is one of those sums.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

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

const float* channel_floats(const char* operation, const char* name, const Tensor& tensor,
                            const ChannelForm& form) {
  require_shape(operation, name, tensor, {form.channels});
  return floats(operation, name, tensor);
}

/// nullptr where there is none.
const float* optional_channel_floats(const char* operation, const char* name, const Tensor& tensor,
                                     const ChannelForm& form) {
  return tensor ? channel_floats(operation, name, tensor, form) : nullptr;
}

double* channel_sum_pairs(const char* operation, const char* name, const Tensor& tensor,
                          const ChannelForm& form) {
  require_shape(operation, name, tensor, {2, form.channels});
  return elements<double>(operation, name, tensor);
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
  ScaleOf(const char* operation, const ChannelForm& form_, const NormalisedBy& by)
      : form(form_),
        means(channel_floats(operation, "mean", by.mean, form_)),
        inv_stds(channel_floats(operation, "inv_std", by.inv_std, form_)),
        weights(optional_channel_floats(operation, "weight", by.weight, form_)),
        biases(optional_channel_floats(operation, "bias", by.bias, form_)) {}

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

/// y = finish(normalised x, its place).
template <class Finish>
void normalise(const char* operation, int threads, const NormalisedBy& by, const Tensor& y,
               const Finish& finish) {
  const ChannelForm form = channel_form(operation, "x", by.x);
  require_alike(operation, "y", y, by.x);
  const float* from = floats(operation, "x", by.x);
  float* to = floats(operation, "y", y);
  const ScaleOf scale_of(operation, form, by);
  map_channels(threads, form, [&](const ChannelTile& tile) {
    return [from, to, finish, scale = scale_of(tile)](std::int64_t at, auto width) {
      const float* __restrict in = from + at;
      float* __restrict out = to + at;
      for (int c = 0; c < static_cast<int>(width); ++c) out[c] = finish(scale(in[c], c), at + c);
    };
  });
}

/// sums [2, C]: of g and of g (x - mean) inv_std, g what make_gradient(tile) -> gradient gives for
/// (place, column, x there), of type float or Floats.
template <class MakeGradient>
void backward_sums(const char* operation, int threads, const Tensor& dy, const Tensor& x, const Tensor& mean,
                   const Tensor& inv_std, const Tensor& sums, const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(operation, "dy", dy);
  require_alike(operation, "x", x, dy);
  const float* from = floats(operation, "x", x);
  const float* means = channel_floats(operation, "mean", mean, form);
  const float* inv_stds = channel_floats(operation, "inv_std", inv_std, form);
  double* to = channel_sum_pairs(operation, "sums", sums, form);
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

/// dx of batch_norm_backward_input for g in place of dy; make_gradient(tile) -> g(place, column).
template <class MakeGradient>
void backward_input(const char* operation, int threads, const Tensor& dy, const NormalisedBy& by,
                    const Tensor& sums, const Tensor& counted, const Tensor& dx,
                    const MakeGradient& make_gradient) {
  const ChannelForm form = channel_form(operation, "dy", dy);
  require_alike(operation, "dx", dx, dy);
  float* to = floats(operation, "dx", dx);
  const ScaleOf scale_of(operation, form, by);
  const auto factor_of = [&](std::int64_t c) { return scale_of.factor_of(c); };
  const double count = counted ? *elements<double>(operation, "count", counted) : 0;
  if (count == 0) {
    map_channels(threads, form, [&](const ChannelTile& tile) {
      return [to, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of)](std::int64_t at,
                                                                                              auto width) {
        float* __restrict out = to + at;
        for (int c = 0; c < static_cast<int>(width); ++c)
          out[c] = gradient(at + c, c) * factor[static_cast<std::size_t>(c)];
      };
    });
    return;
  }
  require_alike(operation, "x", by.x, dy);
  const float* from = floats(operation, "x", by.x);
  const double* pairs = channel_sum_pairs(operation, "sums", sums, form);
  map_channels(threads, form, [&](const ChannelTile& tile) {
    const auto mean_gradient = [&](std::int64_t c) { return static_cast<float>(pairs[c] / count); };
    const auto slope = [&](std::int64_t c) {
      return static_cast<float>(pairs[form.channels + c] / count * static_cast<double>(scale_of.inv_stds[c]));
    };
    return [to, from, gradient = make_gradient(tile), factor = columns_of(form, tile, factor_of),
            mean_of = columns_of(form, tile, [&](std::int64_t c) { return scale_of.means[c]; }),
            mean_dy = columns_of(form, tile, mean_gradient),
            slope_of = columns_of(form, tile, slope)](std::int64_t at, auto width) {
      const float* __restrict x_in = from + at;
      float* __restrict out = to + at;
      for (int column = 0; column < static_cast<int>(width); ++column) {
        const auto c = static_cast<std::size_t>(column);
        out[c] =
            factor[c] * ((gradient(at + column, column) - mean_dy[c]) - (x_in[c] - mean_of[c]) * slope_of[c]);
      }
    };
  });
}

}  // namespace

void CpuBackend::channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) {
  prepare();
  constexpr const char* operation = "channel_moments";
  const ChannelForm form = channel_form(operation, "x", x);
  const float* from = floats(operation, "x", x);
  const float* centres = channel_floats(operation, "centre", centre, form);
  double* to = channel_sum_pairs(operation, "moments", moments, form);
  reduce_channels<2>(
      threads_, form,
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
}

void CpuBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                            const Tensor& bias, const Tensor& y) {
  prepare();
  normalise("batch_norm", threads_, {x, mean, inv_std, weight, bias}, y,
            [](float value, std::int64_t) { return value; });
}

void CpuBackend::batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                 const Tensor& weight, const Tensor& bias, const Tensor& shortcut,
                                 const Tensor& y) {
  prepare();
  constexpr const char* operation = "batch_norm_relu";
  const NormalisedBy by{x, mean, inv_std, weight, bias};
  if (!shortcut) return normalise(operation, threads_, by, y, [](float v, std::int64_t) { return relu(v); });
  require_alike(operation, "the shortcut", shortcut, x);
  normalise(operation, threads_, by, y,
            [added = floats(operation, "the shortcut", shortcut)](float value, std::int64_t at) {
              return relu(value + added[at]);
            });
}

void CpuBackend::batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                          const Tensor& inv_std, const Tensor& sums) {
  prepare();
  constexpr const char* operation = "batch_norm_backward_sums";
  const float* gradient = floats(operation, "dy", dy);
  backward_sums(operation, threads_, dy, x, mean, inv_std, sums, [&](const ChannelTile&) {
    return [gradient]<class T>(std::int64_t at, int, T) { return load<T>(gradient + at); };
  });
}

void CpuBackend::batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                               const Tensor& inv_std, const Tensor& weight,
                                               const Tensor& bias, const Tensor& sums) {
  prepare();
  constexpr const char* operation = "batch_norm_relu_backward_sums";
  const float* gradient = floats(operation, "dy", dy);
  const ScaleOf scale_of(operation, channel_form(operation, "x", x), {x, mean, inv_std, weight, bias});
  backward_sums(operation, threads_, dy, x, mean, inv_std, sums, [&](const ChannelTile& tile) {
    return [gradient, scale = scale_of(tile)]<class T>(std::int64_t at, int column, T x_here) {
      return load<T>(gradient + at) * relu_slope(scale(x_here, column));
    };
  });
}

void CpuBackend::batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                                const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                                const Tensor& gated, const Tensor& sums) {
  prepare();
  constexpr const char* operation = "batch_norm_gated_backward_sums";
  require_alike(operation, "y", y, dy);
  require_alike(operation, "gated", gated, dy);
  const float *gradient = floats(operation, "dy", dy), *value = floats(operation, "y", y);
  float* to = floats(operation, "gated", gated);
  const auto run = [&](const auto& upstream) {
    backward_sums(operation, threads_, dy, x, mean, inv_std, sums, [&](const ChannelTile&) {
      return [upstream, value, to]<class T>(std::int64_t at, int, T) {
        const T let_through = upstream.template operator()<T>(at) * relu_slope(load<T>(value + at));
        std::memcpy(to + at, &let_through, sizeof let_through);
        return let_through;
      };
    });
  };
  if (!beside) return run([gradient]<class T>(std::int64_t at) { return load<T>(gradient + at); });
  require_alike(operation, "beside", beside, dy);
  run([gradient, second = floats(operation, "beside", beside)]<class T>(std::int64_t at) {
    return load<T>(gradient + at) + load<T>(second + at);
  });
}

void CpuBackend::batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                           const Tensor& inv_std, const Tensor& weight, const Tensor& sums,
                                           const Tensor& count, const Tensor& dx) {
  prepare();
  const float* gradient = floats("batch_norm_backward_input", "dy", dy);
  backward_input(
      "batch_norm_backward_input", threads_, dy, {x, mean, inv_std, weight, {}}, sums, count, dx,
      [&](const ChannelTile&) { return [gradient](std::int64_t at, int) { return gradient[at]; }; });
}

void CpuBackend::batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                                const Tensor& inv_std, const Tensor& weight,
                                                const Tensor& bias, const Tensor& sums, const Tensor& count,
                                                const Tensor& dx) {
  prepare();
  constexpr const char* operation = "batch_norm_relu_backward_input";
  const float *gradient = floats(operation, "dy", dy), *from = floats(operation, "x", x);
  const NormalisedBy by{x, mean, inv_std, weight, bias};
  const ScaleOf scale_of(operation, channel_form(operation, "x", x), by);
  backward_input(operation, threads_, dy, by, sums, count, dx, [&](const ChannelTile& tile) {
    return [gradient, from, scale = scale_of(tile)](std::int64_t at, int column) {
      return gradient[at] * relu_slope(scale(from[at], column));
    };
  });
}

void CpuBackend::channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) {
  prepare();
  constexpr const char* operation = "channel_sums";
  const ChannelForm form = channel_form(operation, "dy", dy);
  const float* gradient = floats(operation, "dy", dy);
  channel_floats(operation, "dbias", dbias, form);
  float* to = floats(operation, "dbias", dbias);
  reduce_channels<1>(
      threads_, form,
      [&](const ChannelTile&) {
        return [gradient]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(gradient + at)}; };
      },
      [&](std::int64_t channel, const std::array<double, 1>& sums) {
        const auto sum = static_cast<float>(sums[0]);
        to[channel] = accumulate ? to[channel] + sum : sum;
      });
}

}  // namespace lockstep::kernels
