// Pictures and bytes of files from golden cases, and how far two pictures differ.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/picture.h"
#include "support/golden.h"

namespace lockstep::test {

/// Of a dataset whose elements are bytes.
inline std::vector<std::uint8_t> bytes_of(const GoldenCase& golden, const std::string& path) {
  const Tensor tensor = golden.tensor(path);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.numel()));
  std::transform(tensor.data<float>(), tensor.data<float>() + tensor.numel(), bytes.begin(),
                 [](float value) { return static_cast<std::uint8_t>(value); });
  return bytes;
}

inline data::Picture picture_of(const GoldenCase& golden, const std::string& path) {
  const Tensor tensor = golden.tensor(path);
  return {.height = tensor.size(0), .width = tensor.size(1), .pixels = bytes_of(golden, path)};
}

/// The largest difference of two bytes; 256 if the sizes differ.
inline int difference(const data::Picture& a, const data::Picture& b) {
  if (a.height != b.height || a.width != b.width || a.pixels.size() != b.pixels.size()) return 256;
  int largest = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i)
    largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  return largest;
}

inline data::Picture part_of(const data::Picture& whole, const data::Box<std::int64_t>& box) {
  data::Picture part;
  part.resize(box.height, box.width);
  for (std::int64_t y = 0; y < box.height; ++y)
    std::copy_n(whole.row(box.top + y) + 3 * box.left, 3 * box.width, part.row(y));
  return part;
}

}  // namespace lockstep::test
