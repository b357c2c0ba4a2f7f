// Crops and flips.
#include "lockstep/data/augment.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {
namespace {

/// What happens to one image: out(h, w) = in(h + down, flip(w + right)), zero outside.
struct Change {
  std::int64_t down = 0, right = 0;
  bool flip = false;
};

Change draw(const Augment& augment, const Random& random, std::int64_t sample) {
  const auto words = random.block(static_cast<std::uint64_t>(sample));
  const auto shift = [&](std::uint32_t word) {
    const auto places = static_cast<std::uint64_t>(2 * augment.crop_padding + 1);
    return static_cast<std::int64_t>((word * places) >> 32) - augment.crop_padding;
  };
  return {shift(words[0]), shift(words[1]), augment.flip && (words[2] >> 31) != 0};
}

void apply(const Change& change, const float* in, std::int64_t height, std::int64_t width, float* out) {
  for (std::int64_t h = 0; h < height; ++h, out += width) {
    const std::int64_t from = h + change.down;
    if (from < 0 || from >= height) {
      std::fill_n(out, width, 0.0f);
      continue;
    }
    const float* row = in + from * width;
    for (std::int64_t w = 0; w < width; ++w) {
      const std::int64_t column = w + change.right;
      const bool inside = column >= 0 && column < width;
      out[w] = inside ? row[change.flip ? width - 1 - column : column] : 0.0f;
    }
  }
}

}  // namespace

void augment_images(const Augment& augment, std::uint64_t seed, std::int64_t step, int shard, const Tensor& x,
                    std::span<float> scratch) {
  if (!augment.any()) return;
  if (x.shape().rank() != 4 || x.channel_block() != 1) {
    throw UsageError("augmentation changes images [N, C, H, W], not {}", to_string(x.shape()));
  }
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3),
                     image = channels * height * width;
  if (augment.crop_padding < 0 || augment.crop_padding > std::min(height, width)) {
    throw UsageError("a crop by {} pixels was asked of images {}", augment.crop_padding,
                     to_string(x.shape()));
  }
  if (static_cast<std::int64_t>(scratch.size()) < image) {
    throw UsageError("augmentation of images {} needs scratch memory for {} floats", to_string(x.shape()),
                     image);
  }
  const Random random(
      {seed, purpose_of("augment"), static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(shard)});
  float* data = x.data<float>();
  for (std::int64_t n = 0; n < x.size(0); ++n, data += image) {
    const Change change = draw(augment, random, n);
    std::copy_n(data, image, scratch.data());
    for (std::int64_t c = 0; c < channels; ++c) {
      apply(change, scratch.data() + c * height * width, height, width, data + c * height * width);
    }
  }
}

}  // namespace lockstep::data
