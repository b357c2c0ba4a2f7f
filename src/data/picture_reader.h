// From the bytes of a picture to a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/picture.h"
#include "data/picture_store.h"
#include "data/transforms.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Reads pictures of one size. Keeps its buffers: one for each thread.
class PictureReader {
 public:
  /// The picture in size x size pixels: as evaluations see it, or changed at random for a moment of training.
  /// Valid until the next call. DataError that names the picture.
  const Picture& read(const PictureStore& store, std::int64_t picture, const PictureOptions& options,
                      const Augment& augment, const Moment* moment, std::int64_t sample);

 private:
  PictureDecoder decoder_;
  Resizer resizer_;
  std::vector<std::byte> file_;
  Picture decoded_, sample_;
};

}  // namespace lockstep::data
