// Arrays: the arrays of any HDF5 file, one row a sample, as the fields of a data set. Images: those of them
// that say how they are normalised, with labels. Normalized: a view of any data set.
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

/// How many numbers a Normalization has, unless one number is for all elements or for a feature of series.
std::int64_t normalization_channels(const Shape& sample);
/// Element e of a sample has mean e / block % means of a Normalization of so many means; 0: it cannot have so
/// many.
std::int64_t normalization_block(const Shape& sample, std::int64_t means);

/// Arrays of floats are read as float32 (once normalised, if they are: float64 keeps its digits until then),
/// arrays of integers and booleans (0 and 1) as int64. Several files count as one. An array NAME [rows, ...]
/// with NAME_offsets, integers [samples + 1], is a ragged field: sample i has rows [offsets[i], offsets[i +
/// 1]). Opening throws UsageError on a word that names no field, or two of one name, and DataError that names
/// file and array if one is missing, is not of numbers, has no rows or another number of them than the first,
/// or has samples of another shape, kind or meaning (FieldMeaning::merge) than the first file's, and if
/// offsets do not begin at 0, fall or do not end at the number of rows, unless the arrays have as many rows
/// without them: then NAME_offsets means something else. Reading throws it for floats that
/// float32 cannot hold, and for what is not finite once normalised.
class Arrays : public Dataset {
 public:
  /// One file. DataError with file and array if it has not the fields.
  explicit Arrays(const std::string& path, const ArraysOptions& options = {});
  /// Several files, as one data set in this order.
  explicit Arrays(const std::vector<std::string>& paths, const ArraysOptions& options = {});
  /// data.format = arrays.
  explicit Arrays(const Request& request);
  static bool fits(const Request&) { return true; }  ///< whatever others do not take
  ~Arrays() override;

  std::int64_t size() const override { return size_; }  ///< samples in all files
  const std::vector<Field>& fields() const override { return fields_; }
  std::string name() const override;
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override;
  std::vector<double> column(std::string_view field) const override;
  std::string location(std::int64_t sample) const override;
  bool is_finite() const override;
  std::vector<std::string> skipped() const override { return skipped_; }
  std::vector<std::string> notes() const override { return notes_; }
  FieldMeaning meaning(std::string_view field) const override;
  bool can_normalize() const override { return true; }
  void normalize(std::string_view field, std::optional<Normalization> by) override;
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override;
  /// DataError naming file and row if an integer of the field is no class, 0 to classes - 1. Reads all of it.
  /// Steps that do not exist (Field::padded_by) may be anything.
  void check_labels(std::string_view field, std::int64_t classes) const;

 protected:
  /// What an array must be, and what it becomes.
  enum class Content {
    numbers,  ///< of any shape
    image,    ///< [N, C, H, W], or [N, F] as [F, 1, 1]: float32, normalised as its attributes say
    label     ///< integers [N] from 0 on: field.classes is the largest + 1
  };
  /// An array of the files that is a field.
  struct Array {
    std::string name;                    ///< of the field
    std::string path;                    ///< in the files
    Content content = Content::numbers;  ///< what it must be
    FieldMeaning meaning{};              ///< in the first file
    std::vector<float> byte_values{};    ///< [channels, 256]: what each stored byte becomes once normalised
    std::string index_of{};              ///< path of the array whose rows it numbers; empty: none
  };
  /// Throws as the others. The arrays have name, path and content.
  Arrays(const std::vector<std::string>& paths, std::vector<Array> arrays, std::int64_t memory_limit_bytes);

 private:
  struct Source {
    std::int64_t first = 0, rows = 0;               // samples of this file
    std::vector<std::unique_ptr<RowStore>> arrays;  // by field
    /// By field: of a ragged one where the rows of each sample begin, and the end; else empty.
    std::vector<std::vector<std::int64_t>> offsets;

    /// The rows of samples [first, first + count) of this file.
    std::pair<std::int64_t, std::int64_t> rows_of(std::size_t field, std::int64_t sample,
                                                  std::int64_t count) const;
  };

  void add_files(const std::vector<std::string>& paths, std::int64_t memory_limit_bytes);
  void add_file(const std::string& path, std::int64_t& memory_left_bytes);
  void resolve_indices(const std::string& path);
  void pad(std::string_view field, const std::string& lengths, const Request& request);
  void add_labels(const RowStore& labels, std::size_t field);
  void make_byte_values(std::size_t field);
  void set_normalization(std::size_t field, std::optional<Normalization> by, const std::string& files);
  template <class Stored>
  void convert(const Stored* stored, const RowStore& from, std::size_t field, std::int64_t row,
               const Tensor& into) const;

  std::int64_t size_ = 0;
  std::vector<Field> fields_;
  std::vector<Array> arrays_;  // by field
  std::vector<Source> sources_;
  std::vector<std::string> skipped_, notes_;
};

class Images;

/// How images are read and normalised.
struct ImagesOptions {
  /// Per channel, in the units of the stored values; both or none. Empty: those of the first file, or if it
  /// has none, 0 and 1 (0 and 255 for uint8). Evaluation data needs those of the training data.
  std::vector<double> mean{}, deviation{};
  /// Or those of these images, which must have the same number of channels, and the same class names if both
  /// have names (DataError otherwise); used only while opening.
  const Images* like = nullptr;
  bool labels = true;  ///< false: files without /y have no field y
  /// As in ArraysOptions.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;
};

/// Labelled images. A file has /x [N, C, H, W], or [N, F] for images [F, 1, 1], and /y [N]: /x of any type of
/// numbers, /y of any type of integers. /x may have the attributes mean and std, one number a channel in the
/// units of the stored values; /y the attribute classes, a text with the names of labels 0, 1, 2 ..., a line
/// each. Fields: x float32 [C, H, W], each stored value v as (v - mean) / deviation; y int64, the label.
///
/// Opening throws as Arrays do, and DataError if a label is negative or beyond int64, or if a mean or std is
/// beyond 1e30 or a std below 1e-30; a std of 0 counts as 1 (notes()). Values that are stored as float32 may
/// be other than finite.
class Images : public Arrays {
 public:
  /// One file. DataError if it holds no images.
  explicit Images(const std::string& path, const ImagesOptions& options = {});
  /// Several files, as one data set in this order.
  explicit Images(const std::vector<std::string>& paths, const ImagesOptions& options = {});
  /// data.format = images.
  explicit Images(const Request& request);
  /// Whether the first file has /x and /y as lockstep prepare makes them of images; or lacks one of them, and
  /// the model takes images. DataError if a classification would read images as other arrays because of their
  /// shape: it would learn other numbers.
  static bool fits(const Request& request);

  /// The largest label + 1; 0 without labels.
  std::int64_t classes() const { return fields().size() > 1 ? fields()[1].classes : 0; }

 private:
  static std::vector<Array> arrays_of(const std::vector<std::string>& paths, bool labels);
};

/// A data set whose fields become (value - mean) / deviation.
class Normalized final : public Dataset {
 public:
  /// Takes the data set over.
  explicit Normalized(std::unique_ptr<Dataset> base);

  std::int64_t size() const override { return base_->size(); }  ///< samples
  const std::vector<Field>& fields() const override { return fields_; }
  bool sequential() const override { return base_->sequential(); }
  std::string name() const override { return base_->name(); }
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override {
    return base_->rows(field, samples);
  }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    read_at(samples, into, nullptr);
  }
  void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment& moment) const override {
    read_at(samples, into, &moment);
  }
  std::unique_ptr<Order> order(std::uint64_t seed) const override { return base_->order(seed); }
  std::string location(std::int64_t sample) const override { return base_->location(sample); }
  std::string row_name(std::int64_t sample) const override { return base_->row_name(sample); }
  bool is_finite() const override { return base_->is_finite(); }
  std::vector<std::string> skipped() const override { return base_->skipped(); }
  std::vector<std::string> notes() const override { return base_->notes(); }
  std::string listing() const override { return base_->listing(); }
  std::vector<double> column(std::string_view field) const override;
  FieldMeaning meaning(std::string_view field) const override;
  void number_classes(std::string_view field, const Said<std::vector<std::string>>& names) override {
    base_->number_classes(field, names);
  }
  bool can_normalize() const override { return true; }
  void normalize(std::string_view field, std::optional<Normalization> by) override;
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override {
    base_->hold_on_node(world, memory_left_bytes);
  }

 private:
  void read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
               const Moment* moment) const;

  std::unique_ptr<Dataset> base_;
  std::vector<Field> fields_;
  std::vector<std::optional<Normalization>> by_;  // by field
};

/// Mean and deviation of a float field over all samples, in float64: the same on every rank, and at any
/// number of ranks, which share the reading. 1 is the deviation of what is always the same. Collective;
/// the same DataError on every rank, which names file and row, if a value is not finite. means: how many; 0:
/// normalization_channels(); UsageError if the field cannot have so many. Steps that do not exist
/// (Field::padded_by) do not count; a channel without a value has mean 0 and deviation 1.
Normalization normalization_of(const Dataset& dataset, std::string_view field, comm::HostGroup& world,
                               std::int64_t means = 0);

}  // namespace lockstep::data
