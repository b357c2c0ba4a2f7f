#include "data/array_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"

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
    throw DataError("{}: attribute '{}' of {} has {} numbers, but the images have {} channels", x.file_path(),
                    attribute, x.name(), values.size(), channels);
  }
  return values;
}

Measure::Measure(const Shape& image) : channels_(static_cast<std::size_t>(normalization_channels(image))) {
  pixels_ = static_cast<std::size_t>(image.numel()) / channels_.size();
}

template <class T>
void Measure::add(std::span<const T> images) {
  for (std::size_t at = 0; at < images.size();) {
    for (Channel& channel : channels_) {
      const std::span<const T> plane = images.subspan(at, pixels_);
      at += pixels_;
      if constexpr (std::is_same_v<T, std::uint8_t>) {
        std::uint64_t sum = 0, squares = 0;
        for (const T v : plane) sum += v, squares += std::uint64_t{v} * v;
        channel.sum += sum;
        channel.squares += squares;
      } else {
        // Merges planes like Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
        // computing sample variances", 1979).
        const auto more = static_cast<double>(pixels_);
        double sum = 0, squared_deviation = 0;
        for (const T v : plane) sum += static_cast<double>(v);
        const double mean = sum / more;
        for (const T v : plane) {
          const double apart = static_cast<double>(v) - mean;
          squared_deviation += apart * apart;
        }
        const double apart = mean - channel.mean, total = channel.count + more;
        channel.squared_deviation += squared_deviation + apart * apart * (channel.count * more / total);
        channel.mean += apart * (more / total);
        channel.count = total;
      }
    }
    if (std::is_same_v<T, std::uint8_t>) bytes_ += pixels_;
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

Normalization statistics_of(const std::string& path, const char* array, std::int64_t channels) {
  if (path.empty()) return {};
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Dataset dataset = array == std::string_view("x") ? open_images(file) : file.open_dataset(array);
  Normalization found{channel_attribute(dataset, "mean", channels),
                      channel_attribute(dataset, "std", channels)};
  std::ranges::replace(found.deviation, 0.0, 1.0);  // of a channel that never changes
  check_statistics(path, found);
  return found;
}

ArrayWriter::ArrayWriter(const Output& output, std::vector<NewArray> arrays)
    : output_(output), file_(output.memory) {
  constexpr std::size_t max_plain_bytes = 65'400;  // of an attribute in the oldest format of HDF5
  std::size_t attribute_bytes = 0;
  for (const NewArray& array : arrays) {
    const auto channels = static_cast<std::size_t>(normalization_channels(array.row));
    attribute_bytes = std::max(attribute_bytes, array.normalizes ? channels * 8 : 0);
    for (const auto& [name, text] : array.texts) attribute_bytes = std::max(attribute_bytes, text.size());
  }
  if (!file_) {
    const std::string temporary = temporary_path(output.path, std::to_string(::getpid()));
    OpenFile(temporary, OpenFile::Mode::create_or_truncate);  // maybe of an earlier process of this number
    draft_.emplace(temporary);
    file_ = std::make_shared<hdf5::File>(
        hdf5::File::create(temporary, {.existing = hdf5::CreateOptions::Existing::replace,
                                       .checksummed = attribute_bytes > max_plain_bytes}));
  }
  for (NewArray& array : arrays) {
    if (array.rows == 0) array.rows = arrays.front().rows;
    std::vector<std::int64_t> shape{array.rows};
    shape.insert(shape.end(), array.row.begin(), array.row.end());
    Column column{array, file_->create_dataset(array.name, array.dtype, shape), Measure(array.row),
                  array.row.numel()};
    if (array.measured_as == DType::uint16) column.buffer.emplace<std::vector<std::uint16_t>>();
    if (array.measured_as == DType::uint32) column.buffer.emplace<std::vector<std::uint32_t>>();
    if (array.measured_as == DType::int64) column.buffer.emplace<std::vector<std::int64_t>>();
    if (array.measured_as == DType::float32) column.buffer.emplace<std::vector<float>>();
    if (array.measured_as == DType::float64) column.buffer.emplace<std::vector<double>>();
    columns_.push_back(std::move(column));
  }
}

void ArrayWriter::throw_changed() const {
  throw DataError("{}: not written: the input changed while it was read", output_.path);
}

void ArrayWriter::write(Column& column) {
  const auto write = [&]<class T>(std::vector<T>& buffer) {
    const std::int64_t rows = std::ssize(buffer) / column.width;
    if (rows == 0) return;
    if (rows > column.array.rows - column.done) throw_changed();
    const std::span<const T> values(buffer.data(), static_cast<std::size_t>(rows * column.width));
    column.dataset->write_rows(column.done, rows, values);
    if constexpr (std::is_same_v<T, std::int64_t>) {
      const auto [smallest, largest] = std::ranges::minmax(values);
      column.smallest = column.done == 0 ? smallest : std::min(column.smallest, smallest);
      column.largest = column.done == 0 ? largest : std::max(column.largest, largest);
    } else if (column.array.normalizes && column.array.by.mean.empty()) {
      column.measure.add(values);
    }
    column.done += rows;
    buffer.erase(buffer.begin(), buffer.begin() + std::ssize(values));
  };
  std::visit(write, column.buffer);
}

void ArrayWriter::finish() {
  for (Column& column : columns_) {
    write(column);
    if (column.done != column.array.rows) throw_changed();
    NewArray& array = column.array;
    if (array.normalizes) {
      if (array.by.mean.empty()) {
        array.by = column.measure.result();
        if (array.row.rank() > 0) check_statistics(output_.path + ": not written", array.by);
      }
      column.dataset->set_attribute("mean", std::span<const double>(array.by.mean));
      column.dataset->set_attribute("std", std::span<const double>(array.by.deviation));
    }
    for (const auto& [name, text] : array.texts)
      if (!text.empty()) column.dataset->set_attribute(name, text);
    column.dataset.reset();
  }
  if (!draft_) return;
  file_->close();
  OpenFile(draft_->path(), OpenFile::Mode::write).sync();
}

void ArrayWriter::publish() {
  if (draft_) draft_->publish(output_.path, output_.replace);
}

}  // namespace lockstep::data
