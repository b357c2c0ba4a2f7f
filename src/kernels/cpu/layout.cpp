// Channel blocks: which one convolutions want, and copies between them.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/convolution_plan.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

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
  for (std::int64_t place = 0; place < source.places; ++place) {
    float* __restrict out = to + place * to_lanes + first_lane;
    for (std::int64_t lane = 0; lane < width; ++lane) {
      const float* stream = streams[static_cast<std::size_t>(lane)];
      out[lane] = stream ? stream[place * source.lanes] : 0.0f;
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
        for (std::int64_t place = 0; place < form.places; ++place) out[place * form.lanes] = 0;
        continue;
      }
      const std::uint8_t* plane = from + (image * form.channels + channel) * form.places;
      const float factor = scales[channel], offset = shifts[channel];
      for (std::int64_t place = 0; place < form.places; ++place) {
        out[place * form.lanes] = static_cast<float>(plane[place]) * factor + offset;
      }
    }
  });
}

void enter_layout(CpuBackend& cpu) { cpu.enter<&to_layout, &normalize_images>(Computes::in_float32); }

}  // namespace lockstep::kernels
