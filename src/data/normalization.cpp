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

Normalization normalization_of(const Dataset& dataset, std::string_view field_name, comm::HostGroup& world) {
  const comm::NamedCall call(world, "calls normalization_of");
  constexpr std::int64_t chunk_elements = 1 << 18;
  const Field& field = field_named(dataset, field_name);
  if (field.dtype != DType::float32 && field.dtype != DType::float64 && field.dtype != DType::int64)
    throw UsageError("{}: field {} is {}, which cannot be normalised", dataset.name(), field_name,
                     to_string(field.dtype));
  const std::int64_t elements = field.shape.numel(), channels = normalization_channels(field.shape),
                     block = elements / channels;
  const auto width = static_cast<std::size_t>(channels);
  const std::int64_t rows =
      std::clamp<std::int64_t>(chunk_elements / std::max<std::int64_t>(1, elements), 1, 4096);
  EvalBatches batches(dataset, rows, world);
  const std::string index = std::string(field_name) + "_index";
  std::int64_t rows_read = 0;  // by this rank
  // Twice through the data: sums about the mean lose nothing where the mean is far from 0.
  const auto sums_of = [&](const auto& term) {
    std::vector<double> sums;
    const comm::ShardRange mine = batches.mine();
    comm::run_on_all(world, [&] {
      for (int chunk = mine.first; chunk < mine.end(); ++chunk) {
        const Batch& batch = batches.read(chunk);
        const Tensor& values = batch[field_name];
        rows_read += values.size(0);
        const std::size_t at = sums.size();
        sums.resize(at + width);
        for (std::int64_t e = 0; e < values.numel(); ++e) {
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
          const auto channel = static_cast<std::size_t>(e % elements / block);
          sums[at + channel] += term(value, channel);
        }
      }
    });
    return batches.sum(world, sums, static_cast<int>(width));
  };
  Normalization found{.mean = sums_of([](double value, std::size_t) { return value; }), .deviation = {}};
  const std::vector<std::int64_t> all_rows = comm::all_gather_values(world, rows_read);
  const double count =
      static_cast<double>(std::accumulate(all_rows.begin(), all_rows.end(), std::int64_t{0})) *
      static_cast<double>(block);
  if (count == 0) throw DataError("{}: field {} has no rows to normalise by", dataset.name(), field_name);
  for (double& mean : found.mean) mean /= count;
  found.deviation = sums_of([&](double value, std::size_t channel) {
    return (value - found.mean[channel]) * (value - found.mean[channel]);
  });
  for (std::size_t c = 0; c < width; ++c) {
    found.deviation[c] = std::sqrt(found.deviation[c] / count);
    if (found.deviation[c] < 1e-30) found.deviation[c] = 1;
  }
  return found;
}

}  // namespace lockstep::data
