#include "data/image_writer.h"

#include <algorithm>
#include <cmath>

#include "data/data_file.h"
#include "data/input.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// The variance of integers from their exact sums, computed around the integer nearest to the mean to keep
/// all digits.
double variance_of(std::uint64_t count, std::uint64_t sum, std::uint64_t squares) {
  const std::uint64_t centre = (sum + count / 2) / count;
  // sum (v - centre)^2 and sum (v - centre); intermediate values may wrap.
  const std::uint64_t centred_squares = squares - 2 * centre * sum + count * centre * centre;
  const auto centred_sum = static_cast<std::int64_t>(sum - centre * count);
  const double apart = static_cast<double>(centred_sum) / static_cast<double>(count);
  return static_cast<double>(centred_squares) / static_cast<double>(count) - apart * apart;
}

}  // namespace

void check_statistics(const std::string& where, const Normalization& statistics) {
  constexpr double largest = 1e30, smallest_deviation = 1e-30;
  const auto refuse = [&](const char* name, double value, std::size_t channel, const char* range) {
    throw DataError("{}: {} {} of channel {} cannot normalise images: must be {}", where, name, value,
                    channel, range);
  };
  for (std::size_t c = 0; c < statistics.mean.size(); ++c) {
    const double mean = statistics.mean[c], deviation = statistics.deviation[c];
    if (!(std::abs(mean) <= largest)) refuse("mean", mean, c, "from -1e30 to 1e30");
    if (!(deviation >= smallest_deviation && deviation <= largest))
      refuse("std", deviation, c, "from 1e-30 to 1e30");
  }
}

std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels) {
  std::vector<double> values = x.doubles_attribute(attribute);
  if (static_cast<std::int64_t>(values.size()) != channels) {
    throw DataError("{}: attribute '{}' of /x has {} numbers, but the images have {} channels", x.file_path(),
                    attribute, values.size(), channels);
  }
  return values;
}

Measure::Measure(const Shape& image)
    : pixels_(static_cast<std::size_t>(image[1] * image[2])), channels_(static_cast<std::size_t>(image[0])) {}

void Measure::add(std::span<const std::uint8_t> images) {
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      std::uint64_t sum = 0, squares = 0;
      for (const std::uint8_t v : images.subspan(at, pixels_)) sum += v, squares += std::uint64_t{v} * v;
      channel.sum += sum;
      channel.squares += squares;
      at += pixels_;
    }
    bytes_ += pixels_;
  }
}

void Measure::add(std::span<const float> images) {
  // Merges planes like Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
  // computing sample variances", 1979).
  const auto more = static_cast<double>(pixels_);
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      const std::span<const float> plane = images.subspan(at, pixels_);
      double sum = 0, squared_deviation = 0;
      for (const float v : plane) sum += v;
      const double mean = sum / more;
      for (const float v : plane) squared_deviation += (v - mean) * (v - mean);
      const double apart = mean - channel.mean, total = channel.count + more;
      channel.squared_deviation += squared_deviation + apart * apart * (channel.count * more / total);
      channel.mean += apart * (more / total);
      channel.count = total;
      at += pixels_;
    }
  }
}

Normalization Measure::result() const {
  Normalization found;
  for (const Channel& channel : channels_) {
    const double mean =
        bytes_ > 0 ? static_cast<double>(channel.sum) / static_cast<double>(bytes_) : channel.mean;
    const double variance = bytes_ > 0 ? variance_of(bytes_, channel.sum, channel.squares)
                                       : channel.squared_deviation / channel.count;
    found.mean.push_back(mean);
    found.deviation.push_back(variance > 0 ? std::sqrt(variance) : 1.0);
  }
  return found;
}

namespace {

constexpr std::size_t write_buffer_bytes = std::size_t{1} << 20;

std::optional<Normalization> read_statistics(const std::string& path, std::int64_t channels) {
  if (path.empty()) return {};
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset x = open_images(file);
  Normalization found{x.doubles_attribute("mean"), x.doubles_attribute("std")};
  if (static_cast<std::int64_t>(found.mean.size()) != channels ||
      found.deviation.size() != found.mean.size()) {
    throw DataError("{}: mean and std of /x have {} channels, but the images have {}", path,
                    found.mean.size(), channels);
  }
  check_statistics(path, found);
  return found;
}

}  // namespace

ImageWriter::ImageWriter(hdf5::File& file, const ImageFile& contents, const std::string& path)
    : contents_(contents),
      path_(path),
      x_(file.create_dataset("x", contents.bytes ? DType::uint8 : DType::float32,
                             {contents.images, contents.image[0], contents.image[1], contents.image[2]})),
      y_(file.create_dataset("y", DType::int64, {contents.images})),
      measure_(contents.image) {}

void ImageWriter::throw_changed() const {
  throw DataError("{}: not written: the input changed while it was read", path_);
}

template <class T>
void ImageWriter::write_piece(std::vector<T>& piece) {
  const std::int64_t images = std::ssize(piece) / contents_.image.numel();
  if (images == 0) return;
  if (images > contents_.images - images_done_) throw_changed();
  x_.write_rows(images_done_, images, std::span<const T>(piece));
  measure_.add(std::span<const T>(piece));
  images_done_ += images;
  piece.clear();
}

template <class T>
void ImageWriter::add(std::vector<T>& piece, std::span<const T> values) {
  if ((piece.size() + values.size()) * sizeof(T) > write_buffer_bytes) write_piece(piece);
  piece.insert(piece.end(), values.begin(), values.end());
}

template void ImageWriter::add(std::vector<std::uint8_t>& piece, std::span<const std::uint8_t> values);
template void ImageWriter::add(std::vector<float>& piece, std::span<const float> values);

void ImageWriter::write_labels() {
  if (labels_.empty()) return;
  if (std::ssize(labels_) > contents_.images - labels_done_) throw_changed();
  const auto [smallest, largest] = std::ranges::minmax(labels_);
  smallest_label_ = labels_done_ == 0 ? smallest : std::min(smallest_label_, smallest);
  largest_label_ = std::max(largest_label_, largest);
  y_.write_rows(labels_done_, std::ssize(labels_), std::span<const std::int64_t>(labels_));
  labels_done_ += std::ssize(labels_);
  labels_.clear();
}

void ImageWriter::add_label(std::int64_t label) {
  if ((labels_.size() + 1) * sizeof(label) > write_buffer_bytes) write_labels();
  labels_.push_back(label);
}

void ImageWriter::finish(const std::optional<Normalization>& statistics) {
  write_piece(bytes_);
  write_piece(floats_);
  write_labels();
  if (images_done_ != contents_.images || labels_done_ != contents_.images) throw_changed();
  const Normalization normalisation = statistics ? *statistics : measure_.result();
  if (!statistics) check_statistics(path_ + ": not written", normalisation);
  x_.set_attribute("mean", normalisation.mean);
  x_.set_attribute("std", normalisation.deviation);
  if (!contents_.class_names.empty()) store_names(y_, "classes", contents_.class_names);
  if (!contents_.value_names.empty()) store_names(x_, "names", contents_.value_names);
}

Prepared write_images(const Output& output, const ImageFile& contents, const std::string& statistics,
                      const std::function<void(ImageWriter&)>& fill) {
  if (contents.images == 0) throw DataError("{}: not written: the input has no images", output.path);
  const std::optional<Normalization> normalization = read_statistics(statistics, contents.image[0]);
  Prepared prepared{.samples = contents.images,
                    .image = contents.image,
                    .element_type = contents.bytes ? "uint8" : "float32",
                    .class_names = contents.class_names};
  write_whole(output, [&](hdf5::File& file) {
    ImageWriter writer(file, contents, output.path);
    fill(writer);
    writer.finish(normalization);
    prepared.classes = writer.largest_label() + 1;
    prepared.one_label = writer.one_label();
  });
  return prepared;
}

}  // namespace lockstep::data
