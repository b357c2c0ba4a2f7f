// What the readers of JPEG and PNG say of a file before it is decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "data/picture.h"

namespace lockstep::data {

/// What a file stores, before it is turned upright.
struct StoredPicture {
  std::int64_t height = 0, width = 0;
  std::span<const std::byte> exif{};  ///< a TIFF header and what follows; empty: none
  std::span<const std::byte> xmp{};   ///< text; empty: none
};

}  // namespace lockstep::data
