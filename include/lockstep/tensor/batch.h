// Batch: named tensors with one row per sample, or with several of a ragged field.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// Samples by field: a shard of a step, or a chunk of an evaluation. It is a handle, as a Tensor is: copying
/// it copies no elements and takes no memory.
///
/// Samples may differ in size, as graphs do. Then a field NAME has the rows of all samples, one sample after
/// another, and the field NAME_index, int64 [rows], says of each row the number of its sample in the batch:
/// segment_sum(x, batch["NAME_index"], batch.samples()) adds the rows of each sample.
class Batch {
 public:
  static constexpr std::size_t max_fields = 16;  ///< fields that a batch can have

  Batch() = default;
  /// A batch of one field, x: the input of most models.
  Batch(const Tensor& x) : Batch(0, {{"x", x}}) {}
  /// number: see index(). Throws like add().
  Batch(int number, std::initializer_list<std::pair<std::string_view, Tensor>> fields);
  /// Adds a field. The name must outlive the batch. Throws UsageError beyond max_fields.
  void add(std::string_view field, const Tensor& tensor);

  /// The number of the shard among all shards of the step, or of the chunk among all chunks of the
  /// evaluation.
  int index = 0;

  /// Of a batch that is not ragged: the extent of the first dimension.
  std::int64_t samples() const { return is_ragged() ? samples_ : count_ == 0 ? 0 : tensors_[0].size(0); }
  /// Says that samples differ in size, and how many there are. UsageError for a number below 0.
  void set_ragged(std::int64_t samples);
  bool is_ragged() const { return samples_ >= 0; }  ///< whether samples differ in size
  /// [samples, shape of the field], or [rows, shape of a row] of a ragged field. Throws DataError with the
  /// names of all fields if the field is missing.
  const Tensor& operator[](std::string_view field) const;
  bool has(std::string_view field) const;  ///< whether there is a field of this name
  /// In the order of the data set.
  std::span<const std::string_view> names() const { return {names_.data(), count_}; }
  std::span<const Tensor> tensors() const { return {tensors_.data(), count_}; }  ///< in the order of names()

  /// Samples [begin, end). Shares memory. Throws UsageError if they are out of range, or some, but not all,
  /// of a ragged batch.
  Batch rows(std::int64_t begin, std::int64_t end) const;
  /// A batch with f(tensor) for each tensor.
  template <class F>
  Batch map(F&& f) const {
    Batch mapped = *this;
    for (std::size_t i = 0; i < count_; ++i) mapped.tensors_[i] = f(tensors_[i]);
    return mapped;
  }

 private:
  std::size_t count_ = 0;
  std::int64_t samples_ = -1;  // of a ragged batch
  std::array<std::string_view, max_fields> names_{};
  std::array<Tensor, max_fields> tensors_{};
};

}  // namespace lockstep
