// Ragged fields in batches: which rows of a tensor belong to which samples.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Whether some field is ragged.
bool is_ragged(const Dataset& dataset);

/// The fields of batches: those of the data set, then NAME_index of each ragged field, int64 [rows]: the
/// number of the sample in the batch. DataError if a field has that name already, or is the index of what is
/// no ragged field.
std::vector<Field> with_indices(const Dataset& dataset);

/// The rows of each field of with_indices(). UsageError for numbers that no data set can have.
std::vector<std::int64_t> rows_of_fields(const Dataset& dataset, std::span<const std::int64_t> samples);

/// Of a ragged field, the mean number of rows of a sample.
double mean_rows(const Dataset& dataset, std::size_t field);

/// What read() leaves to do: fills the fields NAME_index, and lets the values of fields with index_of count
/// in the rows of the batch. tensors: of with_indices(). DataError, with the sample, for a value that is no
/// row of its sample.
void complete(const Dataset& dataset, std::span<const std::int64_t> samples, std::span<const Tensor> tensors);

/// The sample that has this row of those that a field has of the samples.
std::int64_t sample_of_row(const Dataset& dataset, std::size_t field, std::span<const std::int64_t> samples,
                           std::int64_t row);

/// Which elements of a field exist in a batch: those of the steps that Field::padded_by counts, or all.
class ExistingSteps {
 public:
  ExistingSteps(const Field& field, const Batch& batch)
      : lengths_(field.padded_by.empty() ? Tensor() : batch[field.padded_by]),
        elements_(field.shape.numel()),
        of_step_(lengths_ ? elements_ / field.shape[0] : elements_) {}
  /// The element of this number, through all samples.
  bool contain(std::int64_t element) const {
    return !lengths_ || element % elements_ / of_step_ < lengths_.data<std::int64_t>()[element / elements_];
  }

 private:
  Tensor lengths_;
  std::int64_t elements_, of_step_;
};

/// The sum of rows_of(sample), or one a sample if the field is not ragged.
template <class RowsOf>
std::int64_t rows_by_sample(const Field& field, std::span<const std::int64_t> samples,
                            const RowsOf& rows_of) {
  if (!field.ragged) return std::ssize(samples);
  std::int64_t rows = 0;
  for (const std::int64_t sample : samples) rows += rows_of(sample);
  return rows;
}

/// Cuts the tensors of a read into those of the samples that follow.
class NextRows {
 public:
  NextRows(const Dataset& dataset, std::span<const Tensor> into) : dataset_(dataset), into_(into) {}
  /// Valid until the next call.
  std::span<const Tensor> operator()(std::span<const std::int64_t> samples) {
    for (std::size_t i = 0; i < into_.size(); ++i) {
      const std::int64_t begin = std::exchange(done_[i], done_[i] + dataset_.rows(i, samples));
      rows_[i] = into_[i].rows(begin, done_[i]);
    }
    return {rows_.data(), into_.size()};
  }

 private:
  const Dataset& dataset_;
  std::span<const Tensor> into_;
  std::array<Tensor, Batch::max_fields> rows_;
  std::array<std::int64_t, Batch::max_fields> done_{};
};

}  // namespace lockstep::data
