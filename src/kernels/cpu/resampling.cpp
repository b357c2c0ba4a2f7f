// Global average pooling and nearest upsampling: an image's places into one, one place into many.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/pooling.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 13;

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
          static_cast<float>(sum[0] / static_cast<double>(form.places));
    });
  });
}

void global_average_pool_backward(CpuBackend& cpu, const ops::GlobalAveragePoolBackward& op) {
  const ChannelForm form = image_form(op.dx);
  const float* gradient = op.dy.data<float>();
  float* to = op.dx.data<float>();
  const auto places = static_cast<float>(form.places);
  for_tiles(cpu.threads(), form, elements_per_thread, [&](std::int64_t run, ChannelTile tile) {
    const float* image_gradient = gradient + run / form.blocks * form.channels;
    const Columns32 share =
        columns_of(form, tile, [&](std::int64_t c) { return image_gradient[c] / places; });
    tile.first += run * form.run();
    for_rows(tile, [&](std::int64_t at, auto width) { std::copy_n(share.data(), width, to + at); });
  });
}

void upsample_nearest(CpuBackend& cpu, const ops::UpsampleNearest& op) {
  const ChannelForm form = image_form(op.x);
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  const std::int64_t width = op.x.size(3), rows = form.runs() * op.x.size(2);  // rows of pixels of all runs
  parallel_ranges(cpu.threads(), rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t out_row = width * op.scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        float* first = to + row * op.scale * out_row;
        float* out = first;
        for (std::int64_t w = 0; w < width; ++w) {
          for (int copy = 0; copy < op.scale; ++copy) {
            out = std::copy_n(from + (row * width + w) * lanes, std::int64_t{lanes}, out);
          }
        }
        for (int copy = 1; copy < op.scale; ++copy) out = std::copy_n(first, out_row, out);
      }
    });
  });
}

void upsample_nearest_backward(CpuBackend& cpu, const ops::UpsampleNearestBackward& op) {
  const ChannelForm form = image_form(op.dx);
  const float* gradient = op.dy.data<float>();
  float* to = op.dx.data<float>();
  const std::int64_t width = op.dx.size(3), rows = form.runs() * op.dx.size(2);
  parallel_ranges(cpu.threads(), rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t in_row = width * op.scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t w = 0; w < width; ++w) {
          float* __restrict out = to + (row * width + w) * lanes;
          std::fill_n(out, std::int64_t{lanes}, 0.0f);
          for (int h = 0; h < op.scale; ++h) {
            const float* __restrict in = gradient + (row * op.scale + h) * in_row + w * op.scale * lanes;
            for (std::int64_t at = 0; at < op.scale; ++at, in += lanes) {
              for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += in[lane];
            }
          }
        }
      }
    });
  });
}

void enter_resampling(CpuBackend& cpu) {
  cpu.enter<&global_average_pool, &global_average_pool_backward, &upsample_nearest,
            &upsample_nearest_backward>(Computes::in_float32);
}

}  // namespace lockstep::kernels
