#include "data/ragged.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::data {

bool is_ragged(const Dataset& dataset) { return std::ranges::any_of(dataset.fields(), &Field::ragged); }

std::vector<Field> with_indices(const Dataset& dataset) {
  std::vector<Field> fields = dataset.fields();
  for (const Field& field : dataset.fields()) {
    if (!field.index_of.empty() && !(has_field(dataset, field.index_of) && field.dtype == DType::int64 &&
                                     field_named(dataset, field.index_of).ragged))
      throw DataError("{}: field {} ({}) has index_of = {}, which is not the name of a ragged field there",
                      dataset.name(), field.name, to_string(field.dtype), field.index_of);
    if (!field.ragged) continue;
    const std::string name = field.name + "_index";
    if (has_field(dataset, name))
      throw DataError(
          "{}: batches have the field {} for the ragged field {}, but the data has one of this name: give it "
          "another",
          dataset.name(), name, field.name);
    fields.push_back({.name = name, .dtype = DType::int64, .ragged = true});
  }
  if (fields.size() > Batch::max_fields)
    throw DataError("{}: batches would have {} fields, with an index for each ragged one, and can have {}",
                    dataset.name(), fields.size(), Batch::max_fields);
  return fields;
}

std::vector<std::int64_t> rows_of_fields(const Dataset& dataset, std::span<const std::int64_t> samples) {
  constexpr std::int64_t max_rows = std::int64_t{1} << 40;
  std::vector<std::int64_t> rows, of_indices;
  for (std::size_t i = 0; i < dataset.fields().size(); ++i) {
    const std::int64_t count = rows.emplace_back(dataset.rows(i, samples));
    if (count < 0 || count > max_rows)
      throw UsageError("{}: rows() says that {} samples have {} rows of {}, not 0 to 2^40", dataset.name(),
                       samples.size(), count, dataset.fields()[i].name);
    if (dataset.fields()[i].ragged) of_indices.push_back(count);
  }
  rows.insert(rows.end(), of_indices.begin(), of_indices.end());
  return rows;
}

double mean_rows(const Dataset& dataset, std::size_t field) {
  double rows = 0;
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample)
    rows += static_cast<double>(dataset.rows(field, {&sample, 1}));
  return rows / static_cast<double>(std::max<std::int64_t>(1, dataset.size()));
}

std::int64_t sample_of_row(const Dataset& dataset, std::size_t field, std::span<const std::int64_t> samples,
                           std::int64_t row) {
  std::size_t n = 0;
  for (std::int64_t end = 0; n < samples.size(); ++n)
    if ((end += dataset.rows(field, samples.subspan(n, 1))) > row) break;
  return samples[std::min(n, samples.size() - 1)];
}

void complete(const Dataset& dataset, std::span<const std::int64_t> samples,
              std::span<const Tensor> tensors) {
  const std::vector<Field>& fields = dataset.fields();
  std::size_t index = fields.size();  // of the next NAME_index
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    const bool is_index = !field.index_of.empty();
    std::int64_t* const sample_of_row = field.ragged ? tensors[index++].data<std::int64_t>() : nullptr;
    if (!field.ragged && !is_index) continue;
    const std::size_t target = is_index ? field_number(dataset, field.index_of) : 0;
    std::int64_t* const values = is_index ? tensors[i].data<std::int64_t>() : nullptr;
    std::int64_t row = 0, first = 0;  // of the sample: in the field, in its target
    for (std::size_t n = 0; n < samples.size(); ++n) {
      const std::int64_t begin = row, there = is_index ? dataset.rows(target, samples.subspan(n, 1)) : 0;
      row += dataset.rows(i, samples.subspan(n, 1));
      if (row < begin || row > tensors[i].size(0))
        throw UsageError("{}: rows() of {} does not add up", dataset.name(), field.name);
      if (sample_of_row) std::fill(sample_of_row + begin, sample_of_row + row, static_cast<std::int64_t>(n));
      const std::int64_t width = field.shape.numel();
      for (std::int64_t e = begin * width; is_index && e < row * width; ++e) {
        if (values[e] < 0 || values[e] >= there)
          throw DataError("{}: field {} holds {}, but its {} has {} rows, counted from 0 in each sample",
                          dataset.location(samples[n]), field.name, values[e], field.index_of, there);
        values[e] += first;
      }
      first += there;
    }
  }
}

}  // namespace lockstep::data
