// Private to the room: images gathered in memory on their way to a data file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/data/prepare.h"

namespace lockstep::data {

/// Values are kept as bytes for as long as all of them are integers in [0, 255], as float32 from then on.
class ImageTable {
 public:
  void add_value(double value);
  void add_bytes(std::span<const std::uint8_t> values);
  void add_label(std::int64_t label) { labels_.push_back(label); }
  std::int64_t images() const { return static_cast<std::int64_t>(labels_.size()); }

  /// Writes /x and /y, whole or not at all. There are images() times image.numel() values. Throws DataError
  /// if there are none.
  Prepared write(const Output& output, const Shape& image, const Statistics& statistics) const;

 private:
  bool holds_bytes() const { return floats_.empty(); }

  std::vector<std::uint8_t> bytes_;
  std::vector<float> floats_;
  std::vector<std::int64_t> labels_;
};

}  // namespace lockstep::data
