// Global average pooling and nearest upsampling: an image's places into one, one place into many.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/problems.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 1 << 13;

std::int64_t runs_per_thread(const ChannelForm& form) {
  return std::max<std::int64_t>(1, elements_per_thread / std::max<std::int64_t>(1, form.run()));
}

/// Of the pooled side.
float* pooled_floats(const char* operation, const char* name, const Tensor& pooled, const Tensor& images) {
  require_pooled(operation, name, pooled, images);
  return plain_floats(operation, name, pooled);
}

void require_places(const char* operation, const char* name, const Tensor& images, const ChannelForm& form) {
  if (form.places > 0) return;
  throw UsageError("{}: {} of shape {} has no places to average", operation, name, to_string(images.shape()));
}

}  // namespace

void CpuBackend::global_average_pool(const Tensor& x, const Tensor& y) {
  prepare();
  constexpr const char* operation = "global_average_pool";
  const ChannelForm form = image_form(operation, "x", x);
  require_places(operation, "x", x, form);
  const float* from = floats(operation, "x", x);
  float* to = pooled_floats(operation, "y", y, x);
  const auto terms = [from]<class T>(std::int64_t at, int) { return std::array<T, 1>{load<T>(from + at)}; };
  parallel_items(threads_, form.runs(), runs_per_thread(form), [&](std::int64_t run) {
    for (std::int64_t tile_index = 0; tile_index < tiles_per_block(form); ++tile_index) {
      ChannelTile tile = tile_of(form, run % form.blocks, tile_index);
      tile.first += run * form.run();
      ColumnSums<1> totals{};
      add_columns<1>(tile, terms, totals);
      fold_columns<1>(form, tile, totals, [&](std::int64_t channel, const std::array<double, 1>& sum) {
        to[run / form.blocks * form.channels + channel] =
            static_cast<float>(sum[0] / static_cast<double>(form.places));
      });
    }
  });
}

void CpuBackend::global_average_pool_backward(const Tensor& dy, const Tensor& dx) {
  prepare();
  constexpr const char* operation = "global_average_pool_backward";
  const ChannelForm form = image_form(operation, "dx", dx);
  require_places(operation, "dx", dx, form);
  const float* gradient = pooled_floats(operation, "dy", dy, dx);
  float* to = floats(operation, "dx", dx);
  const auto places = static_cast<float>(form.places);
  parallel_items(threads_, form.runs(), runs_per_thread(form), [&](std::int64_t run) {
    const float* image_gradient = gradient + run / form.blocks * form.channels;
    for (std::int64_t tile_index = 0; tile_index < tiles_per_block(form); ++tile_index) {
      ChannelTile tile = tile_of(form, run % form.blocks, tile_index);
      const Columns32 share =
          columns_of(form, tile, [&](std::int64_t c) { return image_gradient[c] / places; });
      tile.first += run * form.run();
      for_rows(tile, [&](std::int64_t at, auto width) { std::copy_n(share.data(), width, to + at); });
    }
  });
}

void CpuBackend::upsample_nearest(const Tensor& x, int scale, const Tensor& y) {
  prepare();
  constexpr const char* operation = "upsample_nearest";
  const ChannelForm form = image_form(operation, "x", x);
  require_upsampled(operation, "y", y, x, scale);
  const float* from = floats(operation, "x", x);
  float* to = floats(operation, "y", y);
  const std::int64_t width = x.size(3), rows = form.runs() * x.size(2);  // rows of pixels of all runs
  parallel_ranges(threads_, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t out_row = width * scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        float* first = to + row * scale * out_row;
        float* out = first;
        for (std::int64_t w = 0; w < width; ++w) {
          for (int copy = 0; copy < scale; ++copy) {
            out = std::copy_n(from + (row * width + w) * lanes, std::int64_t{lanes}, out);
          }
        }
        for (int copy = 1; copy < scale; ++copy) out = std::copy_n(first, out_row, out);
      }
    });
  });
}

void CpuBackend::upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) {
  prepare();
  constexpr const char* operation = "upsample_nearest_backward";
  const ChannelForm form = image_form(operation, "dx", dx);
  image_form(operation, "dy", dy);
  require_upsampled(operation, "dy", dy, dx, scale);
  const float* gradient = floats(operation, "dy", dy);
  float* to = floats(operation, "dx", dx);
  const std::int64_t width = dx.size(3), rows = form.runs() * dx.size(2);
  parallel_ranges(threads_, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    with_lanes(form.lanes, [&](auto lanes) {
      const std::int64_t in_row = width * scale * lanes;
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t w = 0; w < width; ++w) {
          float* __restrict out = to + (row * width + w) * lanes;
          std::fill_n(out, std::int64_t{lanes}, 0.0f);
          for (int h = 0; h < scale; ++h) {
            const float* __restrict in = gradient + (row * scale + h) * in_row + w * scale * lanes;
            for (std::int64_t at = 0; at < scale; ++at, in += lanes) {
              for (std::int64_t lane = 0; lane < lanes; ++lane) out[lane] += in[lane];
            }
          }
        }
      }
    });
  });
}

}  // namespace lockstep::kernels
