#include "lockstep/checkpoint/inspect.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/block_reader.h"
#include "checkpoint/elements.h"

namespace lockstep::checkpoint {
namespace {

TensorSummary summarise(BlockReader& reader, const TensorEntry& tensor) {
  TensorSummary summary;
  summary.entry = tensor;
  double squares = 0, min = std::numeric_limits<double>::infinity(), max = -min;
  summary.digest_right = reader.read_all(tensor, [&](std::span<const std::byte> bytes) {
    with_element_type(tensor.dtype, [&]<class T>() {
      for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
        const double value = as_double(element_at<T>(bytes, i));
        if (!std::isfinite(value)) {
          ++summary.not_finite;
          continue;
        }
        squares += value * value;
        min = std::min(min, value);
        max = std::max(max, value);
      }
    });
  });
  summary.norm = std::sqrt(squares);
  if (min <= max) summary.min = min, summary.max = max;
  return summary;
}

}  // namespace

Inspection inspect(const std::string& path) {
  Inspection inspection;
  inspection.index = read_index(path);
  BlockReader reader(inspection.index);
  for (const TensorEntry& tensor : inspection.index.tensors)
    inspection.tensors.push_back(summarise(reader, tensor));
  return inspection;
}

}  // namespace lockstep::checkpoint
