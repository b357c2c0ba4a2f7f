// Random changes of training images, drawn by (seed, step, shard, sample in the shard): the same at any
// number of ranks.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

struct Augment {
  /// Crop: the image is moved by up to this many pixels along each axis and zeros (the mean colour of
  /// normalised images) come in from the side. 0: off.
  int crop_padding = 0;
  bool flip = false;  ///< left to right, for one sample in two

  bool any() const { return crop_padding > 0 || flip; }
};

/// Changes x, float32 [N, C, H, W], in place. `scratch` holds at least one image, C H W floats. Throws
/// UsageError on another x, a small scratch, or crop_padding outside [0, min(H, W)].
void augment_images(const Augment& augment, std::uint64_t seed, std::int64_t step, int shard, const Tensor& x,
                    std::span<float> scratch);

}  // namespace lockstep::data
