// Writing images by pieces.
#include "data/image_writer.h"

#include <algorithm>

#include "data/contents.h"
#include "data/input.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t held_bytes = std::size_t{1} << 20;

std::optional<ChannelStatistics> given_statistics(const std::string& path, std::int64_t channels) {
  if (path.empty()) return {};
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset x = open_images(file);
  ChannelStatistics found{x.doubles_attribute("mean"), x.doubles_attribute("std")};
  if (static_cast<std::int64_t>(found.mean.size()) != channels ||
      found.deviation.size() != found.mean.size()) {
    throw DataError("{}: mean and std of /x are of {} channels, but the images have {}", path,
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
  if ((piece.size() + values.size()) * sizeof(T) > held_bytes) write_piece(piece);
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
  if ((labels_.size() + 1) * sizeof(label) > held_bytes) write_labels();
  labels_.push_back(label);
}

void ImageWriter::finish(const std::optional<ChannelStatistics>& given) {
  write_piece(bytes_);
  write_piece(floats_);
  write_labels();
  if (images_done_ != contents_.images || labels_done_ != contents_.images) throw_changed();
  const ChannelStatistics normalisation = given ? *given : measure_.result();
  if (!given) check_statistics(path_ + ": not written", normalisation);
  x_.set_attribute("mean", normalisation.mean);
  x_.set_attribute("std", normalisation.deviation);
  if (!contents_.class_names.empty()) store_class_names(y_, contents_.class_names);
}

Prepared write_images(const Output& output, const ImageFile& contents, const Statistics& statistics,
                      const std::function<void(ImageWriter&)>& fill) {
  if (contents.images == 0) throw DataError("{}: not written: the input has no images", output.path);
  const std::optional<ChannelStatistics> given = given_statistics(statistics.from, contents.image[0]);
  Prepared prepared{.samples = contents.images,
                    .image = contents.image,
                    .element_type = contents.bytes ? "uint8" : "float32",
                    .class_names = contents.class_names};
  write_whole(output, [&](hdf5::File& file) {
    ImageWriter writer(file, contents, output.path);
    fill(writer);
    writer.finish(given);
    prepared.classes = writer.largest_label() + 1;
    prepared.one_label = writer.one_label();
  });
  return prepared;
}

}  // namespace lockstep::data
