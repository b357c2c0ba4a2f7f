// Arrays: the arrays of any HDF5 file, one row a sample, as the fields of a data set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/host_group.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

class RowStore;

/// Which arrays of a file are fields, and how they are read.
struct ArraysOptions {
  /// Fields and the arrays they are: "x:/fields/density", or "density" for density:/density. Empty: every
  /// array of numbers at the root of the first file, by name.
  std::vector<std::string> fields{};
  /// Arrays are held in memory up to this total; rows of the others are read when they are asked for.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;
};

/// How many numbers a Normalization has.
std::int64_t normalization_channels(const Shape& sample);

/// Arrays of floats are read as float32 (once normalised, if they are: float64 keeps its digits until then),
/// arrays of integers and booleans (0 and 1) as int64. Several files count as one. Opening throws UsageError
/// on a word that names no field, or two of one name, and DataError that names file and array if one is
/// missing, is not of numbers, has no rows or another number of them than the first, or has samples of
/// another shape, kind or meaning (FieldMeaning::merge) than the first file's. Reading throws it for floats
/// that float32 cannot hold, and for what is not finite once normalised.
class Arrays final : public Dataset {
 public:
  /// One file. DataError with file and array if it has not the fields.
  explicit Arrays(const std::string& path, const ArraysOptions& options = {});
  /// Several files, as one data set in this order.
  explicit Arrays(const std::vector<std::string>& paths, const ArraysOptions& options = {});
  ~Arrays() override;

  std::int64_t size() const override { return size_; }  ///< samples in all files
  const std::vector<Field>& fields() const override { return fields_; }
  std::string name() const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override;
  std::string location(std::int64_t sample) const override;
  std::vector<std::string> skipped() const override { return skipped_; }

  /// What the attributes mean and std of the field's array in the first file say, if it has both.
  std::optional<Normalization> stored_normalization(std::string_view field) const;
  /// From now on the field is read normalised; integers become floats. Not while others read. UsageError if
  /// there is no such field, DataError unless every mean is within 1e30 and every deviation in [1e-30, 1e30].
  void normalize(std::string_view field, Normalization by);
  /// By what normalize() has set; null if the field is read as it is stored.
  const Normalization* normalization(std::string_view field) const;
  FieldMeaning meaning(std::string_view field) const override;
  /// The opposite: the field is read as it is stored, floats as float64.
  void read_as_stored(std::string_view field);
  /// DataError naming file and row if an integer of the field is no class, 0 to classes - 1. Reads all of it.
  void check_labels(std::string_view field, std::int64_t classes) const;

 private:
  struct Source {
    std::int64_t first = 0, rows = 0;               // samples of this file
    std::vector<std::unique_ptr<RowStore>> arrays;  // by field
  };
  struct Array {
    std::string path;      // in the files
    FieldMeaning meaning;  // in the first file
  };

  void add_file(const std::string& path, std::int64_t& memory_left_bytes);
  std::size_t index_of(std::string_view field) const;
  template <class From>
  void convert(const From* from, const Source& source, std::size_t field, std::int64_t row,
               const Tensor& into) const;
  void convert(const Source& source, std::size_t field, std::int64_t row, const std::byte* stored,
               const Tensor& into) const;

  std::int64_t size_ = 0;
  std::vector<Field> fields_;
  std::vector<Array> arrays_;  // by field
  std::vector<Source> sources_;
  std::vector<std::string> skipped_;
};

/// Mean and deviation of a float field over all samples, in float64: the same on every rank, and at any
/// number of ranks, which share the reading. 1 is the deviation of what is always the same. Collective;
/// the same DataError on every rank, which names file and row, if a value is not finite.
Normalization normalization_of(const Dataset& dataset, std::string_view field, comm::HostGroup& world);

}  // namespace lockstep::data
