// Channel blocks: which one convolutions want, and copies between them.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/convolution_plan.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

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

void CpuBackend::to_layout(const Tensor& from, const Tensor& to) {
  prepare();
  constexpr const char* operation = "to_layout";
  require_shape(operation, "to", to, from.shape());
  const float* source = floats(operation, "from", from);
  float* target = floats(operation, "to", to);
  if (from.channel_block() == to.channel_block()) {
    if (from.bytes() > 0) std::memcpy(target, source, from.bytes());
    return;
  }
  const ChannelForm source_form = image_form(operation, "from", from);
  const ChannelForm target_form = image_form(operation, "to", to);
  parallel_items(threads_, target_form.runs(), 4, [&](std::int64_t run) {
    const float* image = source + run / target_form.blocks * source_form.blocks * source_form.run();
    for (std::int64_t lane = 0; lane < target_form.lanes; lane += lanes_at_once) {
      with_lanes(std::min(lanes_at_once, target_form.lanes - lane), [&](auto width) {
        gather_run(image, source_form, run % target_form.blocks, lane, width, target_form.lanes,
                   target + run * target_form.run());
      });
    }
  });
}

void CpuBackend::normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                  const Tensor& y) {
  prepare();
  constexpr const char* operation = "normalize_images";
  require_plain(operation, "x", x);
  require_shape(operation, "y", y, x.shape());
  const ChannelForm form = image_form(operation, "y", y);
  require_shape(operation, "scale", scale, {form.channels});
  require_shape(operation, "shift", shift, {form.channels});
  const std::uint8_t* from = elements<std::uint8_t>(operation, "x", x);
  const float* scales = floats(operation, "scale", scale);
  const float* shifts = floats(operation, "shift", shift);
  float* to = floats(operation, "y", y);
  parallel_items(threads_, form.runs(), 4, [&](std::int64_t run) {
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

}  // namespace lockstep::kernels
