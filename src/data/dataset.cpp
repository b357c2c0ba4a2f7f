#include "lockstep/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

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

Subset::Subset(const Dataset& base, std::int64_t first, std::int64_t count, std::optional<Permutation> order)
    : base_(base), first_(first), count_(count), order_(std::move(order)) {
  if (first < 0 || count < 0 || first > base.size() - count) {
    throw UsageError("{}: samples {} to {} of {} asked", base.name(), first, first + count, base.size());
  }
  if (order_ && order_->size() != base.size()) {
    throw UsageError("{}: an order of {} samples was given for {}", base.name(), order_->size(), base.size());
  }
}

void Subset::read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const {
  check_read(samples, x, y);
  // A few numbers at a time, so that threads share no memory.
  std::array<std::int64_t, 64> translated;
  for (std::size_t done = 0; done < samples.size();) {
    const std::size_t count = std::min(translated.size(), samples.size() - done);
    for (std::size_t i = 0; i < count; ++i) translated[i] = base_sample(samples[done + i]);
    const auto begin = static_cast<std::int64_t>(done), end = static_cast<std::int64_t>(done + count);
    base_.read({translated.data(), count}, x.rows(begin, end), y.rows(begin, end));
    done += count;
  }
}

Split split(const Dataset& dataset, double eval_fraction, std::uint64_t seed) {
  if (!(eval_fraction > 0 && eval_fraction < 1)) {
    throw UsageError("eval_fraction = {}: it must lie between 0 and 1", eval_fraction);
  }
  const std::int64_t size = dataset.size();
  const std::int64_t held_out =
      std::max<std::int64_t>(1, std::llround(eval_fraction * static_cast<double>(size)));
  if (held_out >= size) {
    throw DataError("{}: {} samples are too few to hold out a part of {}", dataset.name(), size,
                    eval_fraction);
  }
  std::optional<Permutation> order;
  // The epochs of training use the seed itself; a split must not follow any of them.
  if (!dataset.sequential()) order.emplace(size, mix_bits(seed ^ purpose_of("split")), 0);
  return {Subset(dataset, 0, size - held_out, order), Subset(dataset, size - held_out, held_out, order)};
}

}  // namespace lockstep::data
