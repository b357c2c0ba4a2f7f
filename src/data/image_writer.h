// Private to the module: images on their way to a data file, a piece at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "data/statistics.h"
#include "lockstep/base/shape.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// What a data file will hold, which is known before anything of it is written.
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

  /// The next image, of the type that was said, and the next label; in any order. DataError if there are more
  /// of them than was said.
  void add_image(std::span<const std::uint8_t> values) { add(bytes_, values); }
  void add_image(std::span<const float> values) { add(floats_, values); }
  void add_label(std::int64_t label);

  /// Writes what is held back, and mean and std: these, or the images' own. DataError if images or labels are
  /// missing, or if their own cannot normalise them.
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

/// Makes the data file: fill(writer) reads the inputs again, which were counted before, and adds their images
/// and labels. DataError if there are none, or if they are others now. If anything fails, nothing is left
/// behind.
Prepared write_images(const Output& output, const ImageFile& contents, const Statistics& statistics,
                      const std::function<void(ImageWriter&)>& fill);

}  // namespace lockstep::data
