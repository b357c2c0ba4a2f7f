
#include "ops/strided_copy.h"
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/convolution.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384;
constexpr std::int64_t tile = 32;

/// Walks through the elements of some dimensions without divisions.
class CopyWalk {
 public:
  CopyWalk(const ops::CopyDimensions& dimensions, std::int64_t i) : dimensions_(dimensions) {
    const auto offsets = dimensions.offsets(i);
    from = offsets[0];
    to = offsets[1];
    for (int d = 0; d < dimensions.rank; ++d) {
      index_[d] = i % dimensions.size[d];
      i /= dimensions.size[d];
    }
  }

  void next() {
    for (int d = 0; d < dimensions_.rank; ++d) {
      const auto [from_step, to_step] = dimensions_.stride[d];
      from += from_step;
      to += to_step;
      if (++index_[d] < dimensions_.size[d]) return;
      from -= dimensions_.size[d] * from_step;
      to -= dimensions_.size[d] * to_step;
      index_[d] = 0;
    }
  }

  std::int64_t from, to;

 private:
  const ops::CopyDimensions& dimensions_;
  std::int64_t index_[Shape::max_rank] = {};
};

template <class E>
void copy_row(const E* from, std::int64_t from_step, E* to, std::int64_t to_step, std::int64_t count,
              bool accumulate) {
  if (accumulate) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i)
      store(to[i * to_step], to_float(to[i * to_step]) + to_float(from[i * from_step]));
  } else if (from_step == 1 && to_step == 1 && count > 8) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(E));
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
  }
}

/// A row of dimension 0 at a time, in parts that threads share.
template <class E>
void copy_rows(int threads, const ops::CopyDimensions& dimensions, const E* from, E* to, bool accumulate) {
  const ops::CopyDimensions outer = dimensions.without(0);
  const std::int64_t width = dimensions.size[0],
                     parts = (width + elements_per_thread - 1) / elements_per_thread;
  const std::int64_t from_step = dimensions.stride[0][0], to_step = dimensions.stride[0][1];
  parallel_ranges(threads, outer.count() * parts, elements_per_thread / std::min(width, elements_per_thread),
                  [&](std::int64_t begin, std::int64_t end) {
                    CopyWalk row(outer, begin / parts);
                    std::int64_t part = begin % parts;
                    for (std::int64_t item = begin; item < end; ++item) {
                      const std::int64_t first = part * elements_per_thread;
                      copy_row(from + row.from + first * from_step, from_step, to + row.to + first * to_step,
                               to_step, std::min(elements_per_thread, width - first), accumulate);
                      if (++part < parts) continue;
                      part = 0;
                      row.next();
                    }
                  });
}

/// In tiles of dimension 0, along which `to` is contiguous, and of `across`, along which `from` is.
template <class E>
void copy_tiles(int threads, const ops::CopyDimensions& dimensions, int across, const E* from, E* to,
                bool accumulate) {
  const std::int64_t height = dimensions.size[0], width = dimensions.size[across],
                     tiles = (height + tile - 1) / tile, from_stride = dimensions.stride[0][0],
                     to_stride = dimensions.stride[across][1];
  const ops::CopyDimensions matrices = dimensions.without(across).without(0);
  parallel_items(threads, matrices.count() * tiles, elements_per_thread / (std::min(tile, height) * width),
                 [&](std::int64_t item) {
                   const auto at = matrices.offsets(item / tiles);
                   const std::int64_t top = item % tiles * tile, rows = std::min(tile, height - top);
                   for (std::int64_t left = 0; left < width; left += tile) {
                     const std::int64_t columns = std::min(tile, width - left);
                     const E* const source = from + at[0] + top * from_stride + left;
                     E* const target = to + at[1] + top + left * to_stride;
                     if constexpr (std::is_same_v<E, float>) {
                       if (!accumulate) {
                         transpose(source, from_stride, rows, columns, target, to_stride);
                         continue;
                       }
                     }
                     for (std::int64_t c = 0; c < columns; ++c)
                       copy_row(source + c, from_stride, target + c * to_stride, 1, rows, accumulate);
                   }
                 });
}

void strided_copy(CpuBackend& cpu, const ops::StridedCopy& op) {
  const ops::CopyDimensions dimensions = op.sizes();
  if (dimensions.count() == 0) return;
  const int across = ops::StridedCopy::tiled_dimension(dimensions);
  by_type_of(op.to.tensor, [&]<class E>(E) {
    const E* const from = op.from.tensor.data<E>() + op.from.offset;
    E* const to = op.to.tensor.data<E>() + op.to.offset;
    if (across != 0)
      copy_tiles(cpu.threads(), dimensions, across, from, to, op.accumulate);
    else
      copy_rows(cpu.threads(), dimensions, from, to, op.accumulate);
  });
}

constexpr std::int64_t lanes_at_once = 32;

/// One block of one image of `to`, gathered from an image of `from` (both of the same shape).
template <class Lanes>
void gather_run(const float* from, const ChannelForm& source, std::int64_t block, std::int64_t first_lane,
                Lanes width, std::int64_t to_lanes, float* to) {
  std::array<const float*, lanes_at_once> streams{};
  for (std::int64_t lane = 0; lane < width; ++lane) {
    const std::int64_t channel = block * to_lanes + first_lane + lane;
    if (channel < source.channels) {
      streams[static_cast<std::size_t>(lane)] =
          from + channel / source.lanes * source.run() + channel % source.lanes;
    }
  }
  for (std::int64_t position = 0; position < source.positions; ++position) {
    float* __restrict out = to + position * to_lanes + first_lane;
    for (std::int64_t lane = 0; lane < width; ++lane) {
      const float* stream = streams[static_cast<std::size_t>(lane)];
      out[lane] = stream ? stream[position * source.lanes] : 0.0f;
    }
  }
}

}  // namespace

int CpuBackend::preferred_channel_block(std::int64_t channels, DType) const {
  const int width = native_channel_block();  // an image's few channels stay plain
  return channels >= width ? width : 1;
}

void to_layout(CpuBackend& cpu, const ops::ToLayout& op) {
  const float* source = op.from.data<float>();
  float* target = op.to.data<float>();
  if (op.from.channel_block() == op.to.channel_block()) {
    if (op.from.bytes() > 0) std::memcpy(target, source, op.from.bytes());
    return;
  }
  const ChannelForm source_form = image_form(op.from);
  const ChannelForm target_form = image_form(op.to);
  parallel_items(cpu.threads(), target_form.runs(), 4, [&](std::int64_t run) {
    const float* image = source + run / target_form.blocks * source_form.blocks * source_form.run();
    for (std::int64_t lane = 0; lane < target_form.lanes; lane += lanes_at_once) {
      with_lanes(std::min(lanes_at_once, target_form.lanes - lane), [&](auto width) {
        gather_run(image, source_form, run % target_form.blocks, lane, width, target_form.lanes,
                   target + run * target_form.run());
      });
    }
  });
}

void normalize_images(CpuBackend& cpu, const ops::NormalizeImages& op) {
  const ChannelForm form = image_form(op.y);
  const std::uint8_t* from = op.x.data<std::uint8_t>();
  const float* scales = op.scale.data<float>();
  const float* shifts = op.shift.data<float>();
  float* to = op.y.data<float>();
  parallel_items(cpu.threads(), form.runs(), 4, [&](std::int64_t run) {
    const std::int64_t image = run / form.blocks;
    for (std::int64_t lane = 0; lane < form.lanes; ++lane) {
      const std::int64_t channel = run % form.blocks * form.lanes + lane;
      float* out = to + run * form.run() + lane;
      if (channel >= form.channels) {
        for (std::int64_t position = 0; position < form.positions; ++position) out[position * form.lanes] = 0;
        continue;
      }
      const std::uint8_t* plane = from + (image * form.channels + channel) * form.positions;
      const float factor = scales[channel], offset = shifts[channel];
      for (std::int64_t position = 0; position < form.positions; ++position) {
        out[position * form.lanes] = static_cast<float>(plane[position]) * factor + offset;
      }
    }
  });
}

void enter_strided_copy(CpuBackend& cpu) {
  cpu.enter<&strided_copy>();
  cpu.enter<&to_layout, &normalize_images>(Computes::in_float32);
}

}  // namespace lockstep::kernels
