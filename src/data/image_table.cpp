// Statistics and writing of images.
#include "data/image_table.h"

#include <algorithm>
#include <cmath>

#include "data/contents.h"
#include "data/whole_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

struct ChannelStatistics {
  std::vector<double> mean, deviation;
};

/// Calls visit(channel, values of one plane) for all planes.
template <class T, class Visit>
void for_planes(const std::vector<T>& values, const Shape& image, const Visit& visit) {
  const auto pixels = static_cast<std::size_t>(image[1] * image[2]),
             channels = static_cast<std::size_t>(image[0]);
  for (std::size_t plane = 0; plane * pixels < values.size(); ++plane) {
    visit(plane % channels, std::span<const T>(values).subspan(plane * pixels, pixels));
  }
}

/// Mean and standard deviation over all values of a channel, in two passes; 1 for a constant channel.
template <class T>
ChannelStatistics measure(const std::vector<T>& values, const Shape& image) {
  const auto channels = static_cast<std::size_t>(image[0]);
  const double count = static_cast<double>(values.size() / channels);
  ChannelStatistics found{std::vector<double>(channels), std::vector<double>(channels)};
  for_planes(values, image, [&](std::size_t c, std::span<const T> plane) {
    double sum = 0;
    for (const T value : plane) sum += value;
    found.mean[c] += sum / count;
  });
  for_planes(values, image, [&](std::size_t c, std::span<const T> plane) {
    double squares = 0;
    for (const T value : plane) squares += (value - found.mean[c]) * (value - found.mean[c]);
    found.deviation[c] += squares / count;
  });
  for (double& deviation : found.deviation) deviation = deviation > 0 ? std::sqrt(deviation) : 1.0;
  return found;
}

ChannelStatistics statistics_of_file(const std::string& path, std::int64_t channels) {
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset x = open_images(file);
  ChannelStatistics found{x.doubles_attribute("mean"), x.doubles_attribute("std")};
  if (static_cast<std::int64_t>(found.mean.size()) != channels ||
      found.deviation.size() != found.mean.size()) {
    throw DataError("{}: mean and std of /x are of {} channels, but the images have {}", path,
                    found.mean.size(), channels);
  }
  return found;
}

}  // namespace

void ImageTable::add_value(double value) {
  if (holds_bytes()) {
    const auto byte = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
    if (static_cast<double>(byte) == value) return bytes_.push_back(byte);
    floats_.assign(bytes_.begin(), bytes_.end());
    bytes_ = {};
  }
  floats_.push_back(static_cast<float>(value));
}

void ImageTable::add_bytes(std::span<const std::uint8_t> values) {
  bytes_.insert(bytes_.end(), values.begin(), values.end());
}

Prepared ImageTable::write(const Output& output, const Shape& image, const Statistics& statistics) const {
  if (labels_.empty()) throw DataError("{}: not written: the input has no images", output.path);
  const ChannelStatistics normalisation = !statistics.from.empty()
                                              ? statistics_of_file(statistics.from, image[0])
                                          : holds_bytes() ? measure(bytes_, image)
                                                          : measure(floats_, image);
  const hdf5::ElementType type = holds_bytes() ? hdf5::ElementType::uint8 : hdf5::ElementType::float32;
  write_whole(output, [&](hdf5::File& file) {
    hdf5::Dataset x = file.create_dataset("x", type, {images(), image[0], image[1], image[2]});
    if (holds_bytes()) {
      x.write(std::span<const std::uint8_t>(bytes_));
    } else {
      x.write(std::span<const float>(floats_));
    }
    x.set_attribute("mean", normalisation.mean);
    x.set_attribute("std", normalisation.deviation);
    file.create_dataset("y", hdf5::ElementType::int64, {images()})
        .write(std::span<const std::int64_t>(labels_));
  });
  const auto [smallest, largest] = std::minmax_element(labels_.begin(), labels_.end());
  return {.samples = images(),
          .image = image,
          .element_type = std::string(hdf5::to_string(type)),
          .classes = *largest + 1,
          .skipped = {},
          .one_label = *smallest == *largest};
}

}  // namespace lockstep::data
