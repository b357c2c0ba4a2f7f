// Normalized: a view of any data set.
#include <algorithm>
#include <array>
#include <utility>

#include "data/array_writer.h"
#include "data/normalize_rows.h"
#include "data/ragged.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

void check_normalization(const std::string& where, const Field& field, const Normalization& by) {
  if (!field.index_of.empty())
    throw UsageError("{}: holds numbers of rows (index_of = {}), which cannot be normalised", where,
                     field.index_of);
  if (by.mean.size() != by.deviation.size() || normalization_block(field.shape, std::ssize(by.mean)) == 0) {
    throw DataError("{}: samples are {}, which need {} means and deviations, not {} and {}", where,
                    to_string(field.shape), normalization_channels(field.shape), by.mean.size(),
                    by.deviation.size());
  }
  check_statistics(where, by);
}

Normalized::Normalized(std::unique_ptr<Dataset> base)
    : base_(std::move(base)), fields_(base_->fields()), by_(fields_.size()) {}

void Normalized::read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                         const Moment* moment) const {
  check_read(samples, into);
  std::array<Tensor, Batch::max_fields> all;
  const std::span stored(all.data(), into.size());
  std::ranges::copy(into, stored.begin());
  for (std::size_t i = 0; i < stored.size(); ++i)
    if (const Field& field = base_->fields()[i]; by_[i] && field.dtype != DType::float32)
      stored[i] = Tensor::empty(into[i].shape(), field.dtype);
  moment ? base_->read_to_train(samples, stored, *moment) : base_->read(samples, stored);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (!by_[i]) continue;
    const auto normalize = [&](const auto* values) {
      const std::int64_t rows = into[i].size(0);
      const Unusable bad = normalize_rows<double>(values, *by_[i], fields_[i].shape, rows, false,
                                                  !fields_[i].padded_by.empty(), into[i].data<float>());
      if (bad.row < rows)
        throw DataError(
            "{} of field {} has values in channel {} that are not finite as float32 or once normalised",
            location(sample_of_row(*base_, i, samples, bad.row)), fields_[i].name, bad.channel);
    };
    if (stored[i].dtype() == DType::int64)
      normalize(stored[i].data<std::int64_t>());
    else if (stored[i].dtype() == DType::float64)
      normalize(stored[i].data<double>());
    else
      normalize(stored[i].data<float>());
  }
}

std::vector<double> Normalized::column(std::string_view field) const {
  return by_[field_number(*this, field)] ? Dataset::column(field) : base_->column(field);
}

FieldMeaning Normalized::meaning(std::string_view field) const {
  FieldMeaning meaning = base_->meaning(field);
  meaning.by = by_[field_number(*this, field)];
  return meaning;
}

void Normalized::normalize(std::string_view name, std::optional<Normalization> by) {
  const std::size_t index = field_number(*this, name);
  const Field& field = base_->fields()[index];
  if (by) check_normalization(fmt::format("{}: {}", this->name(), name), field, *by);
  fields_[index].dtype = by ? DType::float32 : field.dtype;
  by_[index] = std::move(by);
}

}  // namespace lockstep::data
