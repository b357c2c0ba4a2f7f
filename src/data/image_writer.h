// Writes images and labels to a data file, a MiB at a time; the means and deviations that normalise them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare.h"
#include "lockstep/base/shape.h"
#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// One number per channel, in the units of the stored values.
struct ChannelStatistics {
  std::vector<double> mean, deviation;
};

/// DataError "WHERE: mean 1e+308 of channel 0 ..." if a float32 could not be normalised by them.
void check_statistics(const std::string& where, const ChannelStatistics& statistics);

/// Attribute mean or std of /x: one number per channel, or DataError.
std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels);

/// Mean and standard deviation per channel of images that are seen once, some at a time.
class Measure {
 public:
  explicit Measure(const Shape& image);

  /// Whole images. All are of one type.
  void add(std::span<const std::uint8_t> images);
  void add(std::span<const float> images);
  /// 1 is the deviation of a channel whose values are all the same.
  ChannelStatistics result() const;

 private:
  struct Channel {
    std::uint64_t sum = 0, squares = 0;                 // of bytes: exact
    double count = 0, mean = 0, squared_deviation = 0;  // of floats
  };

  std::size_t pixels_;
  std::vector<Channel> channels_;
  std::uint64_t bytes_ = 0;  // per channel
};

/// The contents of a data file, known before any of it is written.
struct ImageFile {
  std::int64_t images = 0;
  Shape image{};       ///< [C, H, W]
  bool bytes = false;  ///< uint8, else float32
  std::vector<std::string> class_names{};
};

/// /x and /y of a new file. Holds a MiB of values, or one image if that is more, not the images.
class ImageWriter {
 public:
  ImageWriter(hdf5::File& file, const ImageFile& contents, const std::string& path);

  /// The next image, of the announced type, and the next label; in any order. DataError if there are more
  /// than announced.
  void add_image(std::span<const std::uint8_t> values) { add(bytes_, values); }
  void add_image(std::span<const float> values) { add(floats_, values); }
  void add_label(std::int64_t label);

  /// Writes the rest, and mean and std: the given ones, or those of the images. DataError if images or labels
  /// are missing, or if their own cannot normalise them.
  void finish(const std::optional<ChannelStatistics>& given);

  bool one_label() const { return smallest_label_ == largest_label_; }
  std::int64_t largest_label() const { return largest_label_; }

 private:
  template <class T>
  void add(std::vector<T>& piece, std::span<const T> values);
  template <class T>
  void write_piece(std::vector<T>& piece);
  void write_labels();
  [[noreturn]] void throw_changed() const;

  ImageFile contents_;
  std::string path_;
  hdf5::Dataset x_, y_;
  Measure measure_;
  std::vector<std::uint8_t> bytes_;  // images that are not yet written; one of the two is used
  std::vector<float> floats_;
  std::vector<std::int64_t> labels_;
  std::int64_t images_done_ = 0, labels_done_ = 0;  // written
  std::int64_t smallest_label_ = 0, largest_label_ = 0;
};

/// Makes the data file: fill(writer) reads the inputs, which were counted before, a second time and adds
/// their images and labels. DataError if there are none, or if they have changed. After an error no file
/// remains.
Prepared write_images(const Output& output, const ImageFile& contents, const Statistics& statistics,
                      const std::function<void(ImageWriter&)>& fill);

}  // namespace lockstep::data
