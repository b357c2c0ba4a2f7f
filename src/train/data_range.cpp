#include "train/data_range.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/data/images.h"
#include "tensor/element_types.h"
#include "train/components.h"

namespace lockstep::train {
namespace {

constexpr const char* range_provenance = "x_range";
constexpr const char* type_provenance = "x_type";
constexpr const char* shape_provenance = "x_shape";

/// The lowest and the highest value of a type of integers, of those that float64 holds: none beyond 2^53.
std::pair<double, double> limits_of(DType dtype) {
  return with_element_type(dtype, []<class T>() {
    if constexpr (sizeof(T) == 8 || !std::is_integral_v<T>) {
      return std::pair(std::is_unsigned_v<T> ? 0 : -0x1p53, 0x1p53);
    } else {
      return std::pair(static_cast<double>(std::numeric_limits<T>::lowest()),
                       static_cast<double>(std::numeric_limits<T>::max()));
    }
  });
}

/// UsageError if the first samples leave [-1, 1], which is what floats are taken for by default.
void check_unit_range(const data::Dataset& dataset) {
  constexpr std::int64_t looked_at = 64;
  constexpr float most = 1.001f;  // rounding
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(looked_at, dataset.size())));
  std::iota(indices.begin(), indices.end(), 0);
  Tensor x;
  std::vector<Tensor> tensors;
  for (const data::Field& field : dataset.fields()) {
    tensors.push_back(Tensor::empty(data::batch_shape(std::ssize(indices), field.shape), field.dtype));
    if (field.name == "x") x = tensors.back();
  }
  if (x.dtype() != DType::float32) return;
  dataset.read(indices, tensors);
  const std::span<const float> values(x.data<float>(), static_cast<std::size_t>(x.numel()));
  const auto outside = std::ranges::find_if(values, [](float value) { return std::abs(value) > most; });
  if (outside == values.end()) return;
  const auto [low, high] = std::ranges::minmax(values);
  throw UsageError(
      "data.range: is missing: x of {} has values from {:g} to {:g} (in its first {}); give the lowest and "
      "the highest value it can have",
      dataset.name(), low, high, pluralized(std::ssize(indices), "sample"));
}

}  // namespace

std::vector<double> StoredRange::stored_values(std::span<const float> values) const {
  const bool whole = !is_floating(field.dtype);
  const auto [lowest, highest] = limits_of(field.dtype);
  std::vector<double> stored;
  stored.reserve(values.size());
  for (const float value : values) {
    double there = std::clamp(static_cast<double>(value) * deviation() + mean(), low, high);
    if (whole) there = std::clamp(std::nearbyint(there), lowest, highest);
    stored.push_back(there);
  }
  return stored;
}

bool takes_unit_range(const Config& config) { return make_task(config)->takes_unit_range(); }

void check_no_range(const Config& config, std::string_view why) {
  if (!config.data.range.empty()) throw UsageError("data.range: {}; remove it", why);
}

std::optional<StoredRange> map_to_unit_range(const DataConfig& config, data::Dataset& dataset) {
  auto* const images = dynamic_cast<data::Images*>(&dataset);
  auto* const arrays = dynamic_cast<data::Arrays*>(&dataset);
  if (std::ranges::find(config.normalize, "x") != config.normalize.end())
    throw UsageError("data.normalize: names x, which the task takes in [-1, 1] (data.range); remove it");
  const auto x = std::ranges::find(dataset.fields(), "x", &data::Field::name);
  if (x == dataset.fields().end() || (!images && !arrays)) return std::nullopt;
  StoredRange range{.low = -1, .high = 1, .field = dataset.meaning("x").stored};
  const DType dtype = range.field.dtype;
  if (!config.range.empty()) {
    range.low = config.range[0];
    range.high = config.range[1];
  } else if (dtype == DType::uint8) {
    range.low = 0;
    range.high = 255;
  } else if (!is_floating(dtype)) {
    throw UsageError(
        "data.range: is missing: x of {} is {}; give the lowest and the highest value it can have",
        dataset.name(), to_string(dtype));
  }
  const auto channels =
      static_cast<std::size_t>(images ? x->shape[0] : data::normalization_channels(x->shape));
  const std::vector<double> mean(channels, range.mean()), deviation(channels, range.deviation());
  if (images)
    images->normalize(mean, deviation);
  else
    arrays->normalize("x", {.mean = mean, .deviation = deviation});
  if (config.range.empty() && is_floating(dtype)) check_unit_range(dataset);
  return range;
}

void add(checkpoint::Provenance& provenance, const StoredRange& range) {
  provenance[range_provenance] = fmt::format("{} {}", range.low, range.high);
  provenance[type_provenance] = std::string(to_string(range.field.dtype));
  std::vector<std::int64_t> extents(range.field.shape.begin(), range.field.shape.end());
  provenance[shape_provenance] = fmt::format("{}", fmt::join(extents, " "));
}

StoredRange assumed_range(const DataConfig& config) {
  StoredRange range{.low = 0, .high = 255, .field = {.dtype = DType::uint8, .shape = {}}};
  if (config.range.empty()) return range;
  range.low = config.range[0];
  range.high = config.range[1];
  const bool bytes = range.low >= 0 && range.high <= 255 && range.high - range.low > 1 &&
                     range.low == std::floor(range.low) && range.high == std::floor(range.high);
  if (!bytes) range.field.dtype = DType::float32;
  return range;
}

std::optional<StoredRange> stored_range(const checkpoint::Provenance& provenance, const std::string& file) {
  const auto found = provenance.find(range_provenance), type = provenance.find(type_provenance),
             shape = provenance.find(shape_provenance);
  if (found == provenance.end()) return std::nullopt;
  try {
    if (type == provenance.end() || shape == provenance.end()) throw UsageError("its parts are missing");
    const std::vector<std::string> ends = option::words_of(found->second);
    if (ends.size() != 2) throw UsageError("it has {} ends", ends.size());
    StoredRange range;
    option::read(ends[0], data_range, range.low);
    option::read(ends[1], data_range, range.high);
    if (!(range.low < range.high)) throw UsageError("its ends do not rise");
    range.field.dtype = dtype_named(type->second);
    std::vector<std::int64_t> extents;
    for (const std::string& word : option::words_of(shape->second))
      option::read(word, Range::from(1, 0x1p31), extents.emplace_back());
    if (extents.size() >= static_cast<std::size_t>(Shape::max_rank))
      throw UsageError("samples have {} dimensions", extents.size());
    range.field.shape = Shape(std::span<const std::int64_t>(extents));
    return range;
  } catch (const UsageError& error) {
    throw DataError("{}: the range of x in its provenance is damaged: {}", file, error.what());
  }
}

}  // namespace lockstep::train
