// Writes images and labels to a data file, one MiB at a time, with means and deviations for normalisation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "data/prepare.h"
#include "lockstep/base/shape.h"
#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// DataError "WHERE: mean 1e+308 of channel 0 ..." if the statistics cannot normalise float32 images.
void check_statistics(const std::string& where, const Normalization& statistics);

/// The attribute mean or std of /x. DataError unless it has one number per channel.
std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels);

/// Mean and standard deviation per channel, in one pass over the images.
class Measure {
 public:
  explicit Measure(const Shape& image);

  /// Adds complete images. All calls use the same type.
  void add(std::span<const std::uint8_t> images);
  void add(std::span<const float> images) { add_floats(images); }
  void add(std::span<const double> images) { add_floats(images); }
  /// The deviation of a channel with equal values is 1.
  Normalization result() const;

 private:
  struct Channel {
    std::uint64_t sum = 0, squares = 0;                 // of bytes: exact
    double count = 0, mean = 0, squared_deviation = 0;  // of floats
  };

  template <class T>
  void add_floats(std::span<const T> images);

  std::size_t pixels_;
  std::vector<Channel> channels_;
  std::uint64_t bytes_ = 0;  // per channel
};

/// The contents of a data file to write.
struct ImageFile {
  enum class Target { labels, values, none };

  std::int64_t images = 0;
  Shape image{};                                          ///< [C, H, W]
  DType dtype = DType::float32;                           ///< of /x: uint8, float32 or float64
  std::vector<std::string> class_names{}, value_names{};  ///< attributes of /y and /x
  // Of a table:
  bool flat = false;                      ///< /x is [N, C]
  Target target = Target::labels;         ///< what /y has: int64, values of `target_dtype`, or there is none
  DType target_dtype = DType::float32;    ///< float32 or float64
  std::string target_name{};              ///< with its units: "price [EUR]"; empty: without a name
  std::vector<std::string> code_names{};  ///< of the columns of /codes; empty: there are none
  std::string table{};                    ///< attribute of /x
  bool measured = true;                   ///< whether /x and values in /y get mean and std
};

/// Mean and std of /x, and of values in /y.
struct Statistics {
  Normalization x{}, y{};
};

/// Writes the arrays of a new file. Buffers one MiB of values, or one image if that is larger.
class ImageWriter {
 public:
  ImageWriter(hdf5::File& file, const ImageFile& contents, const std::string& path);

  /// Adds the next image, whose values become the type of ImageFile, or the next label, target or codes, in
  /// any order. DataError if there are more than ImageFile declares.
  template <class From>
  void add_image(std::span<const From> values) {
    std::apply([&](auto&... column) { ((column.array ? add(column, values) : void()), ...); }, images_);
  }
  void add_label(std::int64_t label) { add(labels_, std::span<const std::int64_t>(&label, 1)); }
  void add_target(double value) { add(targets_, std::span<const double>(&value, 1)); }
  void add_codes(std::span<const std::int64_t> codes) { add(codes_, codes); }

  /// Writes the rest and `statistics`, by default those of the images. DataError if images or labels are
  /// missing, or if the images' own statistics cannot normalise them. Returns the statistics.
  Statistics finish(const std::optional<Statistics>& statistics);

  bool one_label() const { return smallest_label_ == largest_label_; }
  std::int64_t largest_label() const { return largest_label_; }

 private:
  /// Rows of an array that are not yet written.
  template <class T>
  struct Column {
    std::optional<hdf5::Dataset> array{};
    std::int64_t width = 1, done = 0;  // elements of a row; rows written
    std::vector<T> piece{};
  };

  template <class T, class From>
  void add(Column<T>& column, std::span<const From> values) {
    if ((column.piece.size() + values.size()) * sizeof(T) > write_buffer_bytes) write_piece(column);
    column.piece.insert(column.piece.end(), values.begin(), values.end());
  }
  template <class T>
  void write_piece(Column<T>& column);
  [[noreturn]] void throw_changed() const;

  static constexpr std::size_t write_buffer_bytes = std::size_t{1} << 20;
  ImageFile contents_;
  std::string path_;
  std::tuple<Column<std::uint8_t>, Column<float>, Column<double>> images_;  // one of them has an array
  Column<std::int64_t> labels_, codes_;
  Column<double> targets_;
  Measure measure_, measure_targets_;
  std::int64_t smallest_label_ = 0, largest_label_ = 0;
};

/// Writes the data file: fill(writer) reads the inputs again and adds their images and labels. `statistics`:
/// see prepare.h. DataError if there are no images, or if the inputs changed. After an error no file remains.
/// also(statistics of the file) runs before it gets its name.
Prepared write_images(const Output& output, const ImageFile& contents, const std::string& statistics,
                      const std::function<void(ImageWriter&)>& fill,
                      const std::function<void(const Statistics&)>& also = {});
/// The same with statistics of another file.
Prepared write_images(const Output& output, const ImageFile& contents,
                      const std::optional<Statistics>& statistics,
                      const std::function<void(ImageWriter&)>& fill,
                      const std::function<void(const Statistics&)>& also = {});

}  // namespace lockstep::data
