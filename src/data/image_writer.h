// Writes images and labels to a data file, one MiB at a time, with means and deviations for normalisation.
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
  void add(std::span<const float> images);
  /// The deviation of a channel with equal values is 1.
  Normalization result() const;

 private:
  struct Channel {
    std::uint64_t sum = 0, squares = 0;                 // of bytes: exact
    double count = 0, mean = 0, squared_deviation = 0;  // of floats
  };

  std::size_t pixels_;
  std::vector<Channel> channels_;
  std::uint64_t bytes_ = 0;  // per channel
};

/// The contents of a data file to write.
struct ImageFile {
  std::int64_t images = 0;
  Shape image{};                                          ///< [C, H, W]
  bool bytes = false;                                     ///< uint8, else float32
  std::vector<std::string> class_names{}, value_names{};  ///< attributes of /y and /x
};

/// Writes /x and /y of a new file. Buffers one MiB of values, or one image if that is larger.
class ImageWriter {
 public:
  ImageWriter(hdf5::File& file, const ImageFile& contents, const std::string& path);

  /// Adds the next image, in the type of ImageFile, or the next label, in any order. DataError if there are
  /// more than ImageFile declares.
  void add_image(std::span<const std::uint8_t> values) { add(bytes_, values); }
  void add_image(std::span<const float> values) { add(floats_, values); }
  void add_label(std::int64_t label);

  /// Writes the rest and `statistics`, by default those of the images. DataError if images or labels are
  /// missing, or if the images' own statistics cannot normalise them.
  void finish(const std::optional<Normalization>& statistics);

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
  std::vector<std::uint8_t> bytes_;  // images not yet written, in one of the two
  std::vector<float> floats_;
  std::vector<std::int64_t> labels_;
  std::int64_t images_done_ = 0, labels_done_ = 0;  // written
  std::int64_t smallest_label_ = 0, largest_label_ = 0;
};

/// Writes the data file: fill(writer) reads the inputs again and adds their images and labels. `statistics`:
/// see prepare.h. DataError if there are no images, or if the inputs changed. After an error no file remains.
Prepared write_images(const Output& output, const ImageFile& contents, const std::string& statistics,
                      const std::function<void(ImageWriter&)>& fill);

}  // namespace lockstep::data
