// Max, average and global average pooling; nearest and bilinear resizing.
#include "lockstep/ops/pooling.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 13;

template <class Op>
constexpr bool takes_the_largest = requires(const Op& op) {
  op.winners;
};

/// The number of a position of the large side.
std::int64_t place_of(const ops::Windows& windows, std::int64_t depth, std::int64_t row,
                      std::int64_t column) {
  return (depth * windows.height.extent + row) * windows.width.extent + column;
}

/// body(number) for the positions of a window, in order.
template <class Body>
void for_places(const ops::Windows& windows, const ops::Window& window, const Body& body) {
  for (std::int64_t d = window.depth.begin; d < window.depth.end; ++d) {
    for (std::int64_t h = window.rows.begin; h < window.rows.end; ++h) {
      for (std::int64_t w = window.columns.begin; w < window.columns.end; ++w)
        body(place_of(windows, d, h, w));
    }
  }
}

/// The largest element of each window and its position; or the mean.
template <bool largest, class Lanes>
void pool_run(const float* x, const ops::Windows& windows, Lanes lanes, float* y, std::int32_t* winners) {
  windows.for_each([&](std::int64_t position, const ops::Window& window) {
    float* __restrict out = y + position * lanes;
    std::int32_t* __restrict winner = largest ? winners + position * lanes : nullptr;
    const std::int64_t first = place_of(windows, window.depth.begin, window.rows.begin, window.columns.begin);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      out[lane] = largest ? x[first * lanes + lane] : 0.0f;
      if constexpr (largest) winner[lane] = static_cast<std::int32_t>(first);
    }
    for_places(windows, window, [&](std::int64_t at) {
      const float* __restrict here = x + at * lanes;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        if constexpr (largest) {
          const bool better = (here[lane] > out[lane]) | (here[lane] != here[lane]);  // NaN wins
          out[lane] = better ? here[lane] : out[lane];
          winner[lane] = better ? static_cast<std::int32_t>(at) : winner[lane];
        } else {
          out[lane] += here[lane];
        }
      }
    });
    if constexpr (!largest) {
      const float share = windows.share(window);
      for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] *= share;
    }
  });
}

/// Zeroes the padding lanes of a run of the last block.
void clear_padding(const ChannelForm& form, std::int32_t* run) {
  for (std::int64_t position = 0; position < form.positions; ++position) {
    std::fill_n(run + (position + 1) * form.lanes - form.padding(), form.padding(), 0);
  }
}

template <class Op>
void forward(CpuBackend& cpu, const Op& op) {
  constexpr bool largest = takes_the_largest<Op>;
  const ChannelForm from_form = image_form(op.x), form = image_form(op.y);
  const ops::Windows windows = op.windows();
  const float* from = op.x.template data<float>();
  float* to = op.y.template data<float>();
  std::int32_t* positions = nullptr;
  if constexpr (largest) positions = op.winners.template data<std::int32_t>();
  for_runs(cpu.threads(), from_form, elements_per_thread, [&](std::int64_t run) {
    std::int32_t* winners = largest ? positions + run * form.run() : nullptr;
    with_lanes(form.lanes, [&](auto lanes) {
      pool_run<largest>(from + run * from_form.run(), windows, lanes, to + run * form.run(), winners);
    });
    if (largest && form.padding() > 0 && run % form.blocks == form.blocks - 1) clear_padding(form, winners);
  });
}

/// Adds the gradient of each window's maximum at its position.
void spread_run(const float* gradient, const std::int32_t* winners, const ChannelForm& form, float* out) {
  for (std::int64_t position = 0; position < form.positions; ++position) {
    for (std::int64_t at = position * form.lanes, lane = 0; lane < form.lanes; ++lane, ++at)
      out[winners[at] * form.lanes + lane] += gradient[at];
  }
}

/// Adds the gradient of each window's mean to all of it.
template <class Lanes>
void spread_run(const float* gradient, const ops::Windows& windows, Lanes lanes, float* out) {
  windows.for_each([&](std::int64_t position, const ops::Window& window) {
    const float* __restrict in = gradient + position * lanes;
    const float share = windows.share(window);
    for_places(windows, window, [&](std::int64_t at) {
      float* __restrict here = out + at * lanes;
      for (std::int64_t lane = 0; lane < lanes; ++lane) here[lane] += in[lane] * share;
    });
  });
}

template <class Op>
void backward(CpuBackend& cpu, const Op& op) {
  const ChannelForm to_form = image_form(op.dx), form = image_form(op.dy);
  const ops::Windows windows = op.windows();
  const float* gradient = op.dy.template data<float>();
  float* to = op.dx.template data<float>();
  for_runs(cpu.threads(), to_form, elements_per_thread, [&](std::int64_t run) {
    const float* in = gradient + run * form.run();
    float* out = to + run * to_form.run();
    std::fill_n(out, to_form.run(), 0.0f);
    if constexpr (takes_the_largest<Op>) {
      spread_run(in, op.winners.template data<std::int32_t>() + run * form.run(), form, out);
    } else {
      with_lanes(form.lanes, [&](auto lanes) { spread_run(in, windows, lanes, out); });
    }
  });
}

}  // namespace

void global_average_pool(CpuBackend& cpu, const ops::GlobalAveragePool& op) {
  const ChannelForm form = image_form(op.x);
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  const auto terms = [from]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(from + at)}; };
  for_tiles(cpu.threads(), form, elements_per_thread, [&](std::int64_t run, ChannelTile tile) {
    tile.first += run * form.run();
    ColumnSums<1> totals{};
    add_columns<1>(tile, terms, totals);
    fold_columns<1>(form, tile, totals, [&](std::int64_t channel, const std::array<double, 1>& sum) {
      to[run / form.blocks * form.channels + channel] =
          static_cast<float>(sum[0] / static_cast<double>(form.positions));
    });
  });
}

void global_average_pool_backward(CpuBackend& cpu, const ops::GlobalAveragePoolBackward& op) {
  const ChannelForm form = image_form(op.dx);
  const float* gradient = op.dy.data<float>();
  float* to = op.dx.data<float>();
  const auto positions = static_cast<float>(form.positions);
  for_tiles(cpu.threads(), form, elements_per_thread, [&](std::int64_t run, ChannelTile tile) {
    const float* image_gradient = gradient + run / form.blocks * form.channels;
    const Columns32 share =
        columns_of(form, tile, [&](std::int64_t c) { return image_gradient[c] / positions; });
    tile.first += run * form.run();
    for_rows(tile, [&](std::int64_t at, auto width) { std::copy_n(share.data(), width, to + at); });
  });
}

namespace {

/// The rows of pixels of images or volumes, and those of an upsampling of each.
struct UpsampledRows {
  std::int64_t width, height, rows, scale, depth_scale;

  UpsampledRows(const ChannelForm& form, const Tensor& small, std::int64_t scale_)
      : width(small.size(-1)),
        height(small.size(-2)),
        rows(width == 0 ? 0 : form.runs() * form.positions / width),
        scale(scale_),
        depth_scale(small.shape().rank() == 5 ? scale_ : 1) {}

  std::int64_t copies() const { return depth_scale * scale; }
  /// The number of the large row that is a copy of a small one.
  std::int64_t at(std::int64_t row, std::int64_t copy) const {
    const std::int64_t slice = row / height * depth_scale + copy / scale;
    return (slice * height + row % height) * scale + copy % scale;
  }
};

}  // namespace

void upsample_nearest(CpuBackend& cpu, const ops::UpsampleNearest& op) {
  const ChannelForm form = image_form(op.x);
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  const UpsampledRows large(form, op.x, op.scale);
  parallel_ranges(cpu.threads(), large.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t out_row = large.width * op.scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        const float* const first = to + large.at(row, 0) * out_row;
        float* out = to + large.at(row, 0) * out_row;
        for (std::int64_t w = 0; w < large.width; ++w) {
          for (int copy = 0; copy < op.scale; ++copy) {
            out = std::copy_n(from + (row * large.width + w) * lanes, std::int64_t{lanes}, out);
          }
        }
        for (std::int64_t copy = 1; copy < large.copies(); ++copy)
          std::copy_n(first, out_row, to + large.at(row, copy) * out_row);
      }
    });
  });
}

void upsample_nearest_backward(CpuBackend& cpu, const ops::UpsampleNearestBackward& op) {
  const ChannelForm form = image_form(op.dx);
  const float* gradient = op.dy.data<float>();
  float* to = op.dx.data<float>();
  const UpsampledRows large(form, op.dx, op.scale);
  parallel_ranges(cpu.threads(), large.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t in_row = large.width * op.scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t w = 0; w < large.width; ++w) {
          float* __restrict out = to + (row * large.width + w) * lanes;
          std::fill_n(out, std::int64_t{lanes}, 0.0f);
          for (std::int64_t copy = 0; copy < large.copies(); ++copy) {
            const float* __restrict in = gradient + large.at(row, copy) * in_row + w * op.scale * lanes;
            for (std::int64_t at = 0; at < op.scale; ++at, in += lanes) {
              for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += in[lane];
            }
          }
        }
      }
    });
  });
}

namespace {

/// The neighbours of all columns, computed once.
class Columns {
 public:
  Columns(CpuBackend& cpu, const ops::Resizing& width)
      : memory_(cpu.scratch(width.to * static_cast<std::int64_t>(sizeof(ops::Neighbours)), DType::uint8)),
        first_(static_cast<ops::Neighbours*>(memory_.raw())) {
    for (std::int64_t column = 0; column < width.to; ++column) first_[column] = width.at(column);
  }
  const ops::Neighbours& operator[](std::int64_t column) const { return first_[column]; }

 private:
  Tensor memory_;
  ops::Neighbours* first_;
};

void resize_bilinear(CpuBackend& cpu, const ops::ResizeBilinear& op) {
  const ops::ResizeSizes sizes = op.sizes();
  const ops::Resizing &down = sizes.height, &across = sizes.width;
  const ChannelForm form = image_form(op.x);
  const Columns columns(cpu, across);
  const float* const from = op.x.data<float>();
  float* const to = op.y.data<float>();
  const std::int64_t rows_per_thread = 8192 / std::max<std::int64_t>(1, across.to * form.lanes) + 1;
  parallel_ranges(cpu.threads(), form.runs() * down.to, rows_per_thread,
                  [&](std::int64_t begin, std::int64_t end) {
                    with_lanes(form.lanes, [&](auto lanes) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        const ops::Neighbours rows = down.at(row % down.to);
                        const float* const image = from + row / down.to * form.run();
                        const float* const upper = image + rows.first * across.from * lanes;
                        const float* const lower = image + rows.second * across.from * lanes;
                        float* __restrict out = to + row * across.to * lanes;
                        for (std::int64_t column = 0; column < across.to; ++column, out += lanes) {
                          const ops::Neighbours& sides = columns[column];
                          const std::int64_t left = sides.first * lanes, right = sides.second * lanes;
                          for (std::int64_t lane = 0; lane < lanes; ++lane) {
                            const auto between = [&](const float* of) {
                              return (1 - sides.share) * of[left + lane] + sides.share * of[right + lane];
                            };
                            out[lane] = (1 - rows.share) * between(upper) + rows.share * between(lower);
                          }
                        }
                      }
                    });
                  });
}

/// Image by image, so that the sums at a position have one order.
void resize_bilinear_backward(CpuBackend& cpu, const ops::ResizeBilinearBackward& op) {
  const ops::ResizeSizes sizes = op.sizes();
  const ops::Resizing &down = sizes.height, &across = sizes.width;
  const ChannelForm form = image_form(op.dx);
  const Columns columns(cpu, across);
  const float* const gradient = op.dy.data<float>();
  float* const to = op.dx.data<float>();
  const std::int64_t run = down.to * across.to * form.lanes;
  parallel_items(cpu.threads(), form.runs(), 8192 / std::max<std::int64_t>(1, run) + 1,
                 [&](std::int64_t number) {
                   with_lanes(form.lanes, [&](auto lanes) {
                     float* const image = to + number * form.run();
                     std::fill_n(image, form.run(), 0.0f);
                     const float* __restrict in = gradient + number * run;
                     for (std::int64_t row = 0; row < down.to; ++row) {
                       const ops::Neighbours rows = down.at(row);
                       for (std::int64_t column = 0; column < across.to; ++column, in += lanes) {
                         const auto add = [&](std::int64_t at_row, std::int64_t at_column, float weight) {
                           float* const out = image + (at_row * across.from + at_column) * lanes;
                           for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += weight * in[lane];
                         };
                         const ops::Neighbours& sides = columns[column];
                         add(rows.first, sides.first, (1 - rows.share) * (1 - sides.share));
                         add(rows.first, sides.second, (1 - rows.share) * sides.share);
                         add(rows.second, sides.first, rows.share * (1 - sides.share));
                         add(rows.second, sides.second, rows.share * sides.share);
                       }
                     }
                   });
                 });
}

}  // namespace

void enter_pooling(CpuBackend& cpu) {
  cpu.enter<&forward<ops::MaxPool>, &backward<ops::MaxPoolBackward>, &forward<ops::AveragePool>,
            &backward<ops::AveragePoolBackward>>(Computes::in_float32);
  cpu.enter<&global_average_pool, &global_average_pool_backward, &upsample_nearest,
            &upsample_nearest_backward>(Computes::in_float32);
  cpu.enter<&resize_bilinear, &resize_bilinear_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
