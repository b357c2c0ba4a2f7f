// Mean and deviation of a field over a data set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "data/ragged.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/loader.h"

namespace lockstep::data {

std::int64_t normalization_channels(const Shape& sample) {
  return sample.rank() == 1 || sample.rank() >= 3 ? sample[0] : 1;
}

std::int64_t normalization_block(const Shape& sample, std::int64_t means) {
  if (means == 1) return sample.numel();
  if (sample.rank() == 2) return means == sample[1] ? 1 : 0;
  return means > 0 && means == normalization_channels(sample) ? sample.numel() / means : 0;
}

Normalization normalization_of(const Dataset& dataset, std::string_view field_name, comm::HostGroup& world,
                               std::int64_t means) {
  const comm::NamedCall call(world, "calls normalization_of");
  constexpr std::int64_t chunk_elements = 1 << 18;
  const Field& field = field_named(dataset, field_name);
  if (field.dtype != DType::float32 && field.dtype != DType::float64 && field.dtype != DType::int64)
    throw UsageError("{}: field {} is {}, which cannot be normalised", dataset.name(), field_name,
                     to_string(field.dtype));
  const std::int64_t elements = field.shape.numel(),
                     channels = means > 0 ? means : normalization_channels(field.shape),
                     block = normalization_block(field.shape, channels);
  if (block == 0)
    throw UsageError("{}: samples of field {} are {}, which do not have {} means", dataset.name(), field_name,
                     to_string(field.shape), means);
  const auto width = static_cast<std::size_t>(channels);
  const std::int64_t rows =
      std::clamp<std::int64_t>(chunk_elements / std::max<std::int64_t>(1, elements), 1, 4096);
  EvalBatches batches(dataset, rows, world);
  const std::string index = std::string(field_name) + "_index";
  // By channel, how many values there are and then their mean; 0 of none. Twice through the data: sums about
  // the mean lose nothing where the mean is far from 0.
  std::vector<double> counts;
  const auto means_of = [&](const auto& term) {
    std::vector<double> sums;  // of each chunk: by channel, then the counts
    const comm::ShardRange mine = batches.mine();
    comm::run_on_all(world, [&] {
      for (int chunk = mine.first; chunk < mine.end(); ++chunk) {
        const Batch& batch = batches.read(chunk);
        const Tensor& values = batch[field_name];
        const ExistingSteps steps(field, batch);
        const std::size_t at = sums.size();
        sums.resize(at + 2 * width);
        for (std::int64_t e = 0; e < values.numel(); ++e) {
          if (!steps.contain(e)) continue;
          const double value =
              values.dtype() == DType::int64     ? static_cast<double>(values.data<std::int64_t>()[e])
              : values.dtype() == DType::float64 ? values.data<double>()[e]
                                                 : static_cast<double>(values.data<float>()[e]);
          if (!std::isfinite(value))
            throw DataError("{} of field {} holds {}: the field cannot be normalised",
                            dataset.location(batches.first_sample(chunk) +
                                             (field.ragged ? batch[index].data<std::int64_t>()[e / elements]
                                                           : e / elements)),
                            field_name, value);
          const auto channel = static_cast<std::size_t>(e / block % channels);
          sums[at + channel] += term(value, channel);
          ++sums[at + width + channel];
        }
      }
    });
    std::vector<double> found = batches.sum(world, sums, static_cast<int>(2 * width));
    counts.assign(found.begin() + std::ssize(found) / 2, found.end());
    found.resize(width);
    for (std::size_t c = 0; c < width; ++c) found[c] /= std::max(1.0, counts[c]);
    return found;
  };
  Normalization found{.mean = means_of([](double value, std::size_t) { return value; }), .deviation = {}};
  if (std::ranges::max(counts) == 0)
    throw DataError("{}: field {} has no values to normalise by", dataset.name(), field_name);
  found.deviation = means_of([&](double value, std::size_t channel) {
    return (value - found.mean[channel]) * (value - found.mean[channel]);
  });
  for (double& deviation : found.deviation) {
    deviation = std::sqrt(deviation);
    if (deviation < 1e-30) deviation = 1;  // it never changes, or has no value
  }
  return found;
}

}  // namespace lockstep::data
