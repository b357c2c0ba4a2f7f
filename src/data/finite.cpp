#include "data/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/ragged.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::data {

std::vector<NotFinite> not_finite_in(const Dataset& dataset, std::span<const std::int64_t> samples,
                                     const Batch& batch) {
  std::vector<NotFinite> found;
  if (dataset.is_finite()) return found;
  for (const Field& field : dataset.fields()) {
    if (field.dtype != DType::float32) continue;
    const Tensor& tensor = batch[field.name];
    const float* const values = tensor.data<float>();
    const ExistingSteps steps(field, batch);
    const auto is_bad = [&](const float& value) {
      return !std::isfinite(value) && steps.contain(&value - values);
    };
    const float* const bad = std::find_if(values, values + tensor.numel(), is_bad);
    if (bad == values + tensor.numel()) continue;
    const std::int64_t row = (bad - values) / field.shape.numel(),
                       sample = sample_of_row(dataset, field_number(dataset, field.name), samples, row);
    found.push_back(
        {.field = field.name,
         .text = fmt::format("{} of field {} holds {}", dataset.location(sample), field.name, *bad)});
  }
  return found;
}

std::string first_not_finite(const Dataset& dataset, std::int64_t max_bytes, comm::HostGroup& world) {
  if (dataset.is_finite()) return "";
  constexpr std::int64_t chunk_bytes = 1 << 20;
  std::int64_t sample_bytes = 1;
  for (const Field& field : dataset.fields())
    sample_bytes += field.shape.numel() * static_cast<std::int64_t>(bytes_of(field.dtype));
  const std::int64_t rows = std::clamp<std::int64_t>(chunk_bytes / sample_bytes, 1, 4096);
  EvalBatches batches(dataset, rows, world);
  std::string mine;
  comm::run_on_all(world, [&] {
    std::int64_t left_bytes = max_bytes;
    std::vector<std::int64_t> samples;
    for (int chunk = batches.mine().first; chunk < batches.mine().end() && left_bytes > 0; ++chunk) {
      const Batch& batch = batches.read(chunk);
      samples.resize(static_cast<std::size_t>(batch.samples()));
      std::iota(samples.begin(), samples.end(), batches.first_sample(chunk));
      for (const Tensor& field : batch.tensors()) left_bytes -= static_cast<std::int64_t>(field.bytes());
      const std::vector<NotFinite> found = not_finite_in(dataset, samples, batch);
      if (found.empty()) continue;
      mine = found.front().text;
      return;
    }
  });
  if (comm::bits_of_any(world, mine.empty() ? 0 : 1) == 0) return "";
  const std::vector<std::string> all = world.all_gather_texts(mine);
  return *std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
}

namespace {

std::vector<NotFinite> all_in_step(Loader& loader, const Dataset& dataset, std::int64_t step,
                                   kernels::Backend& backend) {
  std::vector<NotFinite> all;
  std::vector<std::int64_t> samples(static_cast<std::size_t>(loader.stream().samples_per_shard()));
  for (const Batch& shard : loader.at(step)) {
    loader.stream().shard_samples(step, shard.index, samples);
    const Batch here = shard.map([&](const Tensor& field) { return kernels::on_cpu(field, &backend); });
    for (NotFinite& found : not_finite_in(dataset, samples, here)) all.push_back(std::move(found));
  }
  return all;
}

}  // namespace

std::string not_finite_in_step(Loader& loader, const Dataset& dataset, std::int64_t step,
                               kernels::Backend& backend) {
  if (dataset.is_finite()) return "";
  const auto in = [&](std::int64_t at) {
    return at < 0 ? std::vector<NotFinite>() : all_in_step(loader, dataset, at, backend);
  };
  const std::vector<NotFinite> harmless = in(step - 2);
  for (const std::int64_t suspect : {step - 1, step}) {
    for (const NotFinite& found : in(suspect))
      if (std::ranges::find(harmless, found.field, &NotFinite::field) == harmless.end())
        return fmt::format("{}, in a sample of step {}", found.text, suspect + 1);
  }
  return "";
}

}  // namespace lockstep::data
