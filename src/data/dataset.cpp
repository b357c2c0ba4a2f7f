// What every dataset checks.
#include "lockstep/data/dataset.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"

namespace lockstep::data {

Shape batch_shape(std::int64_t rows, const Shape& sample) {
  std::array<std::int64_t, Shape::max_rank + 1> extents{rows};
  std::copy(sample.begin(), sample.end(), extents.begin() + 1);
  return Shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(sample.rank()) + 1));
}

void Dataset::check_read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const {
  const auto rows = static_cast<std::int64_t>(samples.size());
  const auto check = [&](const char* which, const Tensor& tensor, const Shape& sample, DType dtype) {
    const Shape wanted = batch_shape(rows, sample);
    if (tensor.shape() == wanted && tensor.dtype() == dtype && tensor.channel_block() == 1) return;
    throw UsageError("{}: {} samples are read into {} {} {}, not {} {}", name(), rows, which,
                     to_string(dtype), to_string(wanted), to_string(tensor.dtype()),
                     to_string(tensor.shape()));
  };
  check("x", x, x_shape(), x_dtype());
  check("y", y, y_shape(), DType::int64);
  for (const std::int64_t sample : samples) {
    if (sample < 0 || sample >= size()) throw UsageError("{}: sample {} of {} asked", name(), sample, size());
  }
}

}  // namespace lockstep::data
