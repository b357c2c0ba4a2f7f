#include "data/image_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "data/data_file.h"
#include "data/input.h"
#include "data/table.h"
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

template <class T>
void Measure::add_floats(std::span<const T> images) {
  // Merges planes like Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
  // computing sample variances", 1979).
  const auto more = static_cast<double>(pixels_);
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      const std::span<const T> plane = images.subspan(at, pixels_);
      double sum = 0, squared_deviation = 0;
      for (const T v : plane) sum += v;
      const double mean = sum / more;
      for (const T v : plane) squared_deviation += (v - mean) * (v - mean);
      const double apart = mean - channel.mean, total = channel.count + more;
      channel.squared_deviation += squared_deviation + apart * apart * (channel.count * more / total);
      channel.mean += apart * (more / total);
      channel.count = total;
      at += pixels_;
    }
  }
}

template void Measure::add_floats(std::span<const float> images);
template void Measure::add_floats(std::span<const double> images);

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

/// What the oldest format of HDF5 stores in the header of an array.
constexpr std::size_t max_plain_attribute_bytes = 65'400;

std::optional<Statistics> read_statistics(const std::string& path, const ImageFile& contents) {
  if (path.empty()) return {};
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset x = open_images(file);
  Statistics found{{x.doubles_attribute("mean"), x.doubles_attribute("std")}, {}};
  if (static_cast<std::int64_t>(found.x.mean.size()) != contents.image[0] ||
      found.x.deviation.size() != found.x.mean.size()) {
    throw DataError("{}: mean and std of /x have {} channels, but the images have {}", path,
                    found.x.mean.size(), contents.image[0]);
  }
  std::ranges::replace(found.x.deviation, 0.0, 1.0);  // of a channel that never changes
  check_statistics(path, found.x);
  if (contents.target != ImageFile::Target::values) return found;
  const hdf5::Dataset y = file.open_dataset("y");
  found.y = {y.doubles_attribute("mean"), y.doubles_attribute("std")};
  return found;
}

}  // namespace

ImageWriter::ImageWriter(hdf5::File& file, const ImageFile& contents, const std::string& path)
    : contents_(contents), path_(path), measure_(contents.image), measure_targets_(Shape{1, 1, 1}) {
  const std::int64_t rows = contents.images;
  std::vector<std::int64_t> shape{rows, contents.image[0]};
  if (!contents.flat) shape.insert(shape.end(), {contents.image[1], contents.image[2]});
  const auto make = [&](auto& column, const char* name, DType dtype, std::span<const std::int64_t> extents) {
    column.array = file.create_dataset(name, dtype, extents);
    for (const std::int64_t extent : extents.subspan(1)) column.width *= extent;
  };
  std::apply(
      [&](auto&... of) {
        const auto make_if = [&]<class T>(Column<T>& column) {
          if (dtype_of<T> == contents.dtype) make(column, "x", contents.dtype, shape);
        };
        (make_if(of), ...);
      },
      images_);
  using Target = ImageFile::Target;
  const std::array column{rows};
  if (contents.target == Target::labels) make(labels_, "y", DType::int64, column);
  if (contents.target == Target::values) make(targets_, "y", contents.target_dtype, column);
  if (!contents.code_names.empty())
    make(codes_, "codes", DType::int64, std::array{rows, std::ssize(contents.code_names)});
}

void ImageWriter::throw_changed() const {
  throw DataError("{}: not written: the input changed while it was read", path_);
}

template <class T>
void ImageWriter::write_piece(Column<T>& column) {
  const std::int64_t rows = std::ssize(column.piece) / column.width;
  if (rows == 0) return;
  if (!column.array || rows > contents_.images - column.done) throw_changed();
  const std::span<const T> piece(column.piece);
  column.array->write_rows(column.done, rows, piece);
  if constexpr (std::is_same_v<T, std::int64_t>) {
    if (&column == &labels_) {
      const auto [smallest, largest] = std::ranges::minmax(piece);
      smallest_label_ = column.done == 0 ? smallest : std::min(smallest_label_, smallest);
      largest_label_ = std::max(largest_label_, largest);
    }
  } else {
    (static_cast<void*>(&column) == &targets_ ? measure_targets_ : measure_).add(piece);
  }
  column.done += rows;
  column.piece.clear();
}

template void ImageWriter::write_piece(Column<std::uint8_t>& column);
template void ImageWriter::write_piece(Column<float>& column);
template void ImageWriter::write_piece(Column<double>& column);
template void ImageWriter::write_piece(Column<std::int64_t>& column);

Statistics ImageWriter::finish(const std::optional<Statistics>& statistics) {
  hdf5::Dataset* x = nullptr;
  const auto end = [&](auto& column) {
    write_piece(column);
    if (column.array && column.done != contents_.images) throw_changed();
    return column.array ? &*column.array : nullptr;
  };
  std::apply([&](auto&... column) { ((x = x ? x : end(column)), ...); }, images_);
  hdf5::Dataset* const labels = end(labels_);
  hdf5::Dataset* const targets = end(targets_);
  hdf5::Dataset* const codes = end(codes_);
  Statistics all = statistics.value_or(Statistics{});
  if (!statistics && contents_.measured) {
    all.x = measure_.result();
    if (targets) all.y = measure_targets_.result();
    check_statistics(path_ + ": not written", all.x);
  }
  for (const auto& [array, by] : {std::pair(x, &all.x), {targets, &all.y}}) {
    if (!array || by->mean.empty()) continue;
    array->set_attribute("mean", by->mean);
    array->set_attribute("std", by->deviation);
  }
  if (!contents_.class_names.empty() && labels) store_names(*labels, "classes", contents_.class_names);
  if (!contents_.value_names.empty()) store_names(*x, "names", contents_.value_names);
  if (!contents_.table.empty()) x->set_attribute("table", contents_.table);
  if (codes) store_names(*codes, "names", contents_.code_names);
  if (hdf5::Dataset* const y = targets ? targets : labels; y && !contents_.target_name.empty()) {
    store_names(*y, "names", {contents_.target_name});
    if (const std::string_view units = units_of(contents_.target_name); !units.empty())
      y->set_attribute("units", units);
  }
  return all;
}

Prepared write_images(const Output& output, const ImageFile& contents, const std::string& statistics,
                      const std::function<void(ImageWriter&)>& fill,
                      const std::function<void(const Statistics&)>& also) {
  if (contents.images == 0) throw DataError("{}: not written: the input has no images", output.path);
  return write_images(output, contents, read_statistics(statistics, contents), fill, also);
}

Prepared write_images(const Output& output, const ImageFile& contents,
                      const std::optional<Statistics>& statistics,
                      const std::function<void(ImageWriter&)>& fill,
                      const std::function<void(const Statistics&)>& also) {
  Prepared prepared{.samples = contents.images,
                    .image = contents.image,
                    .element_type = std::string(to_string(contents.dtype)),
                    .class_names = contents.class_names};
  std::size_t attribute_bytes =
      std::max(contents.table.size(), static_cast<std::size_t>(contents.image[0]) * 8);
  for (const auto* const names : {&contents.value_names, &contents.code_names})
    attribute_bytes = std::max(attribute_bytes, fmt::format("{}", fmt::join(*names, "\n")).size());
  const auto write = [&](hdf5::File& file) {
    ImageWriter writer(file, contents, output.path);
    fill(writer);
    const Statistics found = writer.finish(statistics);
    prepared.classes = contents.target == ImageFile::Target::labels ? writer.largest_label() + 1 : 0;
    prepared.one_label = contents.target == ImageFile::Target::labels && writer.one_label();
    if (also) also(found);
  };
  write_whole(output, write, attribute_bytes > max_plain_attribute_bytes);
  return prepared;
}

}  // namespace lockstep::data
