#include "train/learned_data.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "lockstep/base/error.h"
#include "tensor/element_types.h"

namespace lockstep::train {
namespace {

constexpr std::string_view normalization_prefix = "data/";
// Of /data/FIELD.
constexpr std::string_view type_attribute = "dtype", largest_attribute = "largest", units_attribute = "units",
                           packing_attribute = "packing", classes_attribute = "classes",
                           names_attribute = "names", table_attribute = "table", index_attribute = "index_of",
                           padded_attribute = "padded_by";

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

}  // namespace

data::Normalization StoredRange::normalization(std::int64_t channels) const {
  const auto count = static_cast<std::size_t>(channels);
  return {.mean = std::vector<double>(count, low + (high - low) / 2),
          .deviation = std::vector<double>(count, (high - low) / 2)};
}

std::vector<double> StoredRange::stored_values(std::span<const float> values) const {
  const bool whole = !is_floating(field.dtype);
  const auto [lowest, highest] = limits_of(field.dtype);
  const data::Normalization by = normalization(1);
  std::vector<double> stored;
  stored.reserve(values.size());
  for (const float value : values) {
    double there = std::clamp(static_cast<double>(value) * by.deviation[0] + by.mean[0], low, high);
    if (whole) there = std::clamp(std::nearbyint(there), lowest, highest);
    stored.push_back(there);
  }
  return stored;
}

void add(checkpoint::Provenance& provenance, const StoredRange& range) {
  provenance[range_provenance] = fmt::format("{} {}", range.low, range.high);
  provenance[type_provenance] = std::string(to_string(range.field.dtype));
  std::vector<std::int64_t> extents(range.field.shape.begin(), range.field.shape.end());
  provenance[shape_provenance] = fmt::format("{}", fmt::join(extents, " "));
}

data::StoredTokenizer stored_tokenizer(const checkpoint::Provenance& provenance) {
  const auto fact = [&](const char* name) {
    const auto found = provenance.find(name);
    return found == provenance.end() ? std::string() : found->second;
  };
  return data::StoredTokenizer::of(fact(tokenizer_provenance), fact(tokenizer_text_provenance));
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

const data::Normalization* LearnedFrom::normalization(const std::string& field) const {
  const auto found = fields.find(field);
  return found == fields.end() || !found->second.by ? nullptr : &*found->second.by;
}

LearnedFrom learned_from(const checkpoint::FileIndex& index) {
  LearnedFrom from{.name = index.path, .fields = {}};
  for (const checkpoint::GroupEntry& group : index.groups) {
    if (!checkpoint::is_data_group(group.path)) continue;
    data::FieldMeaning& meaning = from.fields[group.path.substr(normalization_prefix.size())];
    for (std::string* const file :
         {&meaning.scale.file, &meaning.classes.file, &meaning.names.file, &meaning.units.file,
          &meaning.packing.file, &meaning.table.file, &meaning.index_of.file})
      *file = index.path;
    if (!group.attributes.empty()) {  // earlier versions wrote none
      meaning.packing.value.emplace();
      meaning.index_of.value.emplace();
    }
    for (const auto& [name, value] : group.attributes) {
      const auto* const text = std::get_if<std::string>(&value);
      if (name == largest_attribute && std::holds_alternative<double>(value))
        meaning.scale.value.largest = std::get<double>(value);
      if (!text) continue;
      try {
        if (name == type_attribute) meaning.scale.value.dtype = dtype_named(*text);
      } catch (const UsageError& error) {
        throw DataError("{}: /{} is damaged: {}", index.path, group.path, error.what());
      }
      if (name == units_attribute) meaning.units.value = *text;
      if (name == packing_attribute) meaning.packing.value = *text;
      if (name == table_attribute) meaning.table.value = *text;
      if (name == index_attribute) meaning.index_of.value = *text;
      if (name == padded_attribute) meaning.padded_by = *text;
      if (name == classes_attribute || name == names_attribute)
        for (const std::string_view line : lines_of(*text))
          (name == classes_attribute ? meaning.classes : meaning.names).value.emplace_back(line);
    }
  }
  for (const checkpoint::TensorEntry& entry : index.tensors) {
    if (!checkpoint::is_data_group(entry.group) || entry.dtype != DType::float64) continue;
    data::FieldMeaning& meaning = from.fields[entry.group.substr(normalization_prefix.size())];
    if (!meaning.by) meaning.by.emplace();
    std::vector<double>& values = entry.name == "mean" ? meaning.by->mean : meaning.by->deviation;
    values.resize(static_cast<std::size_t>(entry.shape.numel()));
    checkpoint::BlockReader(*index.file, entry, reinterpret_cast<std::byte*>(values.data())).finish();
  }
  if (const auto found = index.provenance.find(tokenizer_provenance); found != index.provenance.end())
    for (const char* const field : {"x", "y"})
      from.fields[field].tokens = {{.tokenizer = found->second}, index.path};
  return from;
}

void add(checkpoint::StateDict& state_dict, const data::Dataset& data,
         const std::optional<StoredRange>& range) {
  for (const data::Field& field : data.fields()) {
    const data::FieldMeaning meaning = data.meaning(field.name);
    checkpoint::Section section;
    section.path = fmt::format("{}{}", normalization_prefix, field.name);
    if (meaning.by) section = checkpoint::normalization_section(field.name, *meaning.by, {});
    const auto describe = [&](std::string_view name, checkpoint::AttributeValue value) {
      section.attributes.push_back({std::string(name), std::move(value), {}});
    };
    const double largest = meaning.scale.value.largest;
    describe(type_attribute,
             std::string(to_string((largest > 0 ? meaning.scale.value : meaning.stored).dtype)));
    if (largest > 0) describe(largest_attribute, largest);
    if (!meaning.units.value.empty()) describe(units_attribute, meaning.units.value);
    if (!meaning.table.value.empty()) describe(table_attribute, meaning.table.value);
    if (!meaning.packing.value.value_or("").empty()) describe(packing_attribute, *meaning.packing.value);
    if (!field.index_of.empty()) describe(index_attribute, field.index_of);
    if (!field.padded_by.empty()) describe(padded_attribute, field.padded_by);
    for (const auto& [name, names] :
         {std::pair(classes_attribute, &meaning.classes.value), {names_attribute, &meaning.names.value}})
      if (!names->empty()) describe(name, fmt::format("{}", fmt::join(*names, "\n")));
    if (field.name == "x" && range) describe("range", fmt::format("{} {}", range->low, range->high));
    state_dict.sections.push_back(std::move(section));
  }
}

}  // namespace lockstep::train
