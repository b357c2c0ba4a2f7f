// Evaluation in chunks.
#include "lockstep/data/eval_batches.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

comm::ShardMap chunk_map(const Dataset& dataset, std::int64_t batch, int ranks) {
  if (batch < 1) throw UsageError("an evaluation batch of {} was asked: it must be at least 1", batch);
  if (dataset.size() < 1) throw UsageError("{}: there is nothing to evaluate", dataset.name());
  const std::int64_t chunks = (dataset.size() - 1) / batch + 1;
  if (chunks > std::numeric_limits<int>::max()) {
    throw UsageError("{}: {} samples in batches of {} are too many batches", dataset.name(), dataset.size(),
                     batch);
  }
  return {static_cast<int>(chunks), ranks};
}

}  // namespace

EvalBatches::EvalBatches(const Dataset& dataset, std::int64_t batch, const comm::HostGroup& world)
    : EvalBatches(dataset, batch, world.rank(), world.size()) {}

EvalBatches::EvalBatches(const Dataset& dataset, std::int64_t batch, int rank, int ranks)
    : dataset_(dataset), batch_(batch), rank_(rank), map_(chunk_map(dataset, batch, ranks)) {
  const std::int64_t rows = std::min(batch, dataset.size());
  samples_.resize(static_cast<std::size_t>(rows));
  x_ = Tensor::zeros(batch_shape(rows, dataset.x_shape()), dataset.x_dtype());
  y_ = Tensor::zeros(batch_shape(rows, dataset.y_shape()), DType::int64);
}

const EvalBatch& EvalBatches::read(int chunk) {
  if (chunk < 0 || chunk >= chunks())
    throw UsageError("{}: chunk {} of {} asked", dataset_.name(), chunk, chunks());
  const std::int64_t first = chunk * batch_, rows = std::min(batch_, dataset_.size() - first);
  const std::span<std::int64_t> samples(samples_.data(), static_cast<std::size_t>(rows));
  std::iota(samples.begin(), samples.end(), first);
  current_ = {chunk, x_.rows(0, rows), y_.rows(0, rows)};
  dataset_.read(samples, current_.x, current_.y);
  return current_;
}

std::vector<double> EvalBatches::sum(comm::HostGroup& world, std::span<const double> values,
                                     int width) const {
  const auto numbers = static_cast<std::size_t>(width);
  if (width < 0 || values.size() != numbers * static_cast<std::size_t>(mine().count)) {
    throw UsageError("{} values were given for {} chunks of {}", values.size(), mine().count, width);
  }
  // Ranks hold the same number of chunks or one less; the first rank holds the most.
  const std::size_t most = numbers * static_cast<std::size_t>(map_.block(0).count);
  std::vector<double> own(most), all(most * static_cast<std::size_t>(world.size())), sums(numbers);
  std::copy(values.begin(), values.end(), own.begin());
  world.all_gather(own.data(), most * sizeof(double), all.data());
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* block = all.data() + static_cast<std::size_t>(rank) * most;
    for (int chunk = 0; chunk < map_.block(rank).count; ++chunk, block += numbers) {
      for (std::size_t i = 0; i < numbers; ++i) sums[i] += block[i];
    }
  }
  return sums;
}

}  // namespace lockstep::data
