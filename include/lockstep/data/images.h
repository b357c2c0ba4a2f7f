// Images: labelled images in HDF5 files.
//
// A file has /x [N, C, H, W], or [N, F] for images [F, 1, 1], and /y [N]. /x is of uint8, float32 or any
// other type of numbers (then read as float32), /y of any type of integers; both may be chunked and
// compressed. /x may have the attributes mean and std, one number per channel in the units of the stored
// values; /y the attribute classes, a text with the names of labels 0, 1, 2 ..., a line each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::hdf5 {
class File;
}

namespace lockstep::data {

class Images;
class RowStore;

/// How images are read and normalised.
struct ImagesOptions {
  /// Per channel, in the units of the stored values; both or none. Empty: those of the first file, or if it
  /// has none, 0 and 1 (0 and 255 for uint8). Evaluation data needs those of the training data.
  std::vector<double> mean{}, deviation{};
  /// Or those of these images, which must have the same number of channels, and the same class names if both
  /// have names (DataError otherwise); used only while opening.
  const Images* like = nullptr;
  bool labels = true;  ///< false: files without /y have no field y
  /// Files are held in memory up to this total; rows of the others are read when they are asked for.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;
};

/// Fields: x float32 [C, H, W], each stored value v as (v - mean) / deviation; y int64, the label. Several
/// files count as one. Opening throws DataError naming the file if it is missing, not HDF5, without /x or /y,
/// empty, of a wrong type or shape, if a label is negative or beyond int64, if the same values mean two
/// things in two files (FieldMeaning::merge), or if a mean or std is beyond 1e30 or a std below 1e-30.
/// Reading throws it for values that are not finite once they are converted and normalised; values that are
/// stored as float32 are not checked.
class Images final : public Dataset {
 public:
  /// One file. DataError if it holds no images.
  explicit Images(const std::string& path, const ImagesOptions& options = {});
  /// Several files, as one data set in this order.
  explicit Images(const std::vector<std::string>& paths, const ImagesOptions& options = {});
  ~Images() override;

  std::int64_t size() const override { return size_; }  ///< samples in all files
  const std::vector<Field>& fields() const override { return fields_; }
  std::int64_t classes() const {
    return fields_.size() > 1 ? fields_[1].classes : 0;
  }  ///< the largest label + 1
  std::string name() const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override;

  std::string location(std::int64_t sample) const override;
  bool is_finite() const override;

  const std::vector<double>& mean() const { return mean_; }  ///< of each channel, in the units of the file
  /// Standard deviation of each channel, in the units of the file.
  const std::vector<double>& deviation() const { return deviation_; }
  /// Whether attributes of /x in the first file say the mean or the deviation.
  bool names_statistics() const { return names_statistics_; }
  /// From now on x is normalised by these, one of each a channel, in the units of the file. Not while others
  /// read. Throws as the options of the same names.
  void normalize(std::vector<double> mean, std::vector<double> deviation);
  FieldMeaning meaning(std::string_view field) const override;
  /// Throws DataError naming file, index and value of the first label that a model of `classes` classes
  /// cannot have.
  void check_labels(std::int64_t classes) const;

 private:
  struct Source {
    std::unique_ptr<RowStore> x;
    std::int64_t first = 0, rows = 0;  // samples of this file
    bool bytes = false;                // stored as uint8
    bool converted = false;            // stored as numbers of another type than uint8 and float32
  };

  void add_file(const std::string& path, bool labelled, std::int64_t& memory_left_bytes);
  void add_labels(const hdf5::File& file, std::int64_t images);
  void set_statistics(const ImagesOptions& options, const std::string& first_path);
  void normalize(const Source& source, std::int64_t row, const std::byte* stored, float* out) const;

  std::vector<Source> sources_;
  std::int64_t size_ = 0;
  std::vector<std::int64_t> labels_;
  Shape shape_;
  std::vector<Field> fields_;
  FieldMeaning x_, y_;
  std::vector<double> mean_, deviation_;
  bool names_statistics_ = false;
  std::vector<float> byte_values_;  // [C, 256]: what each stored byte becomes
};

}  // namespace lockstep::data
