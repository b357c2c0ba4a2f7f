// Activations as kernels see them.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

/// An activation [N, C, places], plain, or with its channels last ([N, places, C]).
struct Image {
  std::int64_t images = 1, channels = 1, places = 1;
  bool channels_last = false;

  struct Element {
    std::int64_t number, channel;  ///< number: in [N, C, places]
  };
  /// The one that is stored there.
  constexpr Element element_at(std::int64_t at) const {
    if (!channels_last) return {at, at / places % channels};
    const std::int64_t channel = at % channels, place = at / channels % places;
    return {(at / (channels * places) * channels + channel) * places + place, channel};
  }
};

/// Of [N, C, H, W], or of [N, C], whose rows are the places of one image.
inline Image image_of(const Tensor& tensor) {
  if (tensor.shape().rank() == 2) return {1, tensor.size(1), tensor.size(0), true};
  return {tensor.size(0), tensor.size(1), tensor.size(2) * tensor.size(3), tensor.channel_block() != 1};
}

}  // namespace lockstep::kernels
