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
  constexpr const char* operation = "batch_norm";
  const ChannelForm form = channel_form(operation, "x", x);
  require_alike(operation, "y", y, x);
  const float* from = floats(operation, "x", x);
  const float* means = channel_floats(operation, "mean", mean, form);
  const float* inv_stds = channel_floats(operation, "inv_std", inv_std, form);
  const float* weights = optional_channel_floats(operation, "weight", weight, form);
  const float* biases = optional_channel_floats(operation, "bias", bias, form);
  float* to = floats(operation, "y", y);
  map_channels(threads_, form, [&](const ChannelTile& tile) {
    return [from, to, mean_of = columns_of(form, tile, [&](std::int64_t c) { return means[c]; }),
            factor = columns_of(
                form, tile, [&](std::int64_t c) { return weights ? inv_stds[c] * weights[c] : inv_stds[c]; }),
            bias_of = columns_of(form, tile, [&](std::int64_t c) { return biases ? biases[c] : 0.0f; })](
               std::int64_t at, auto width) {
      const float* __restrict in = from + at;
      float* __restrict out = to + at;
      for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
        out[c] = (in[c] - mean_of[c]) * factor[c] + bias_of[c];
      }
    };
  });
}

void CpuBackend::batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                          const Tensor& inv_std, const Tensor& sums) {
  prepare();
  constexpr const char* operation = "batch_norm_backward_sums";
  const ChannelForm form = channel_form(operation, "dy", dy);
  require_alike(operation, "x", x, dy);
  const float* gradient = floats(operation, "dy", dy);
  const float* from = floats(operation, "x", x);
  const float* means = channel_floats(operation, "mean", mean, form);
  const float* inv_stds = channel_floats(operation, "inv_std", inv_std, form);
  double* to = channel_sum_pairs(operation, "sums", sums, form);
  reduce_channels<2>(
      threads_, form,
      [&](const ChannelTile& tile) {
        return [gradient, from, mean_of = columns_of(form, tile, [&](std::int64_t c) {
                                  return means[c];
                                })]<class T>(std::int64_t at, int column) {
          const T dy_here = load<T>(gradient + at);
          return std::array<T, 2>{dy_here, dy_here * (load<T>(from + at) - load<T>(mean_of.data() + column))};
        };
      },
      [&](std::int64_t channel, const std::array<double, 2>& channel_sums) {
        to[channel] = channel_sums[0];
        to[form.channels + channel] = channel_sums[1] * static_cast<double>(inv_stds[channel]);
      });
}

void CpuBackend::batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                           const Tensor& inv_std, const Tensor& weight, const Tensor& sums,
                                           const Tensor& counted, const Tensor& dx) {
  prepare();
  constexpr const char* operation = "batch_norm_backward_input";
  const ChannelForm form = channel_form(operation, "dy", dy);
  require_alike(operation, "dx", dx, dy);
  const float* gradient = floats(operation, "dy", dy);
  const float* inv_stds = channel_floats(operation, "inv_std", inv_std, form);
  const float* weights = optional_channel_floats(operation, "weight", weight, form);
  float* to = floats(operation, "dx", dx);
  const auto factor_of = [&](std::int64_t c) { return weights ? inv_stds[c] * weights[c] : inv_stds[c]; };
  const double count = counted ? *elements<double>(operation, "count", counted) : 0;
  if (count == 0) {
    map_channels(threads_, form, [&](const ChannelTile& tile) {
      return [gradient, to, factor = columns_of(form, tile, factor_of)](std::int64_t at, auto width) {
        const float* __restrict in = gradient + at;
        float* __restrict out = to + at;
        for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) out[c] = in[c] * factor[c];
      };
    });
    return;
  }
  require_alike(operation, "x", x, dy);
  const float* from = floats(operation, "x", x);
  const float* means = channel_floats(operation, "mean", mean, form);
  const double* pairs = channel_sum_pairs(operation, "sums", sums, form);
  map_channels(threads_, form, [&](const ChannelTile& tile) {
    const auto mean_gradient = [&](std::int64_t c) { return static_cast<float>(pairs[c] / count); };
    const auto slope = [&](std::int64_t c) {
      return static_cast<float>(pairs[form.channels + c] / count * static_cast<double>(inv_stds[c]));
    };
    return [gradient, from, to, factor = columns_of(form, tile, factor_of),
            mean_of = columns_of(form, tile, [&](std::int64_t c) { return means[c]; }),
            mean_dy = columns_of(form, tile, mean_gradient),
            slope_of = columns_of(form, tile, slope)](std::int64_t at, auto width) {
      const float* __restrict dy_in = gradient + at;
      const float* __restrict x_in = from + at;
      float* __restrict out = to + at;
      for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
        out[c] = factor[c] * ((dy_in[c] - mean_dy[c]) - (x_in[c] - mean_of[c]) * slope_of[c]);
      }
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
