// Reading labelled images.
#include "lockstep/data/images.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "data/contents.h"
#include "data/row_store.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {
namespace {

using hdf5::ElementType;

std::string shape_text(const hdf5::Dataset& dataset) {
  return fmt::format("[{}]", fmt::join(dataset.shape(), ", "));
}

/// One number per channel, or a DataError.
std::vector<double> channel_attribute(const hdf5::Dataset& x, const char* attribute, std::int64_t channels) {
  std::vector<double> values = x.doubles_attribute(attribute);
  if (static_cast<std::int64_t>(values.size()) != channels) {
    throw DataError("{}: attribute '{}' of /x has {} numbers, but the images have {} channels", x.file_path(),
                    attribute, values.size(), channels);
  }
  return values;
}

void check_statistics(const std::string& where, const std::vector<double>& mean,
                      const std::vector<double>& deviation) {
  for (std::size_t c = 0; c < mean.size(); ++c) {
    if (std::isfinite(mean[c]) && std::isfinite(deviation[c]) && deviation[c] > 0) continue;
    throw DataError("{}: mean {} and std {} of channel {} cannot normalise images", where, mean[c],
                    deviation[c], c);
  }
}

}  // namespace

Images::Images(const std::string& path, const ImagesOptions& options)
    : Images(std::vector<std::string>{path}, options) {}

Images::Images(const std::vector<std::string>& paths, const ImagesOptions& options) {
  if (paths.empty()) throw UsageError("no image files were named");
  std::int64_t memory_left_bytes = options.memory_limit_bytes;
  for (const std::string& path : paths) add_file(path, memory_left_bytes);
  set_statistics(options, paths.front());
}

Images::~Images() = default;

void Images::add_file(const std::string& path, std::int64_t& memory_left_bytes) {
  hdf5::File file = hdf5::File::open(path);
  hdf5::Dataset x = open_images(file);
  const hdf5::Dataset y = file.open_dataset("/y");
  if (x.shape().size() != 4 || (x.type() != ElementType::uint8 && x.type() != ElementType::float32)) {
    throw DataError("{}: /x is {} {}, but images are uint8 or float32 [N, C, H, W]", path,
                    hdf5::to_string(x.type()), shape_text(x));
  }
  if (y.shape().size() != 1 || y.type() != ElementType::int64) {
    throw DataError("{}: /y is {} {}, but labels are int64 [N]", path, hdf5::to_string(y.type()),
                    shape_text(y));
  }
  if (x.rows() != y.rows())
    throw DataError("{}: /x has {} images and /y {} labels", path, x.rows(), y.rows());
  if (x.numel() == 0) throw DataError("{}: /x {} has no elements", path, shape_text(x));
  const Shape shape{x.shape()[1], x.shape()[2], x.shape()[3]};
  if (!parts_.empty() && !(shape == shape_)) {
    throw DataError("{}: images are {}, but those of {} are {}", path, to_string(shape),
                    parts_.front().x->path(), to_string(shape_));
  }
  shape_ = shape;

  const std::vector<std::int64_t> labels = y.read_all<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0) throw DataError("{}: label {} of /y is {}: labels count from 0", path, i, labels[i]);
    classes_ = std::max(classes_, labels[i] + 1);
  }
  Part part;
  part.first = size();
  part.rows = x.rows();
  part.bytes = x.type() == ElementType::uint8;
  if (parts_.empty()) {
    if (x.has_attribute("mean")) mean_ = channel_attribute(x, "mean", shape[0]);
    if (x.has_attribute("std")) deviation_ = channel_attribute(x, "std", shape[0]);
    const auto channels = static_cast<std::size_t>(shape[0]);
    if (mean_.empty()) mean_.assign(channels, 0.0);
    if (deviation_.empty()) deviation_.assign(channels, part.bytes ? 255.0 : 1.0);
  }
  part.x = std::make_unique<RowStore>(std::move(file), std::move(x), memory_left_bytes);
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  parts_.push_back(std::move(part));
}

void Images::set_statistics(const ImagesOptions& options, const std::string& first_path) {
  const auto channels = static_cast<std::size_t>(shape_[0]);
  if (!options.mean.empty() || !options.deviation.empty()) {
    if (options.mean.size() != channels || options.deviation.size() != channels) {
      throw UsageError("{}: {} means and {} deviations were given for images of {} channels", first_path,
                       options.mean.size(), options.deviation.size(), channels);
    }
    mean_ = options.mean;
    deviation_ = options.deviation;
  }
  check_statistics(first_path, mean_, deviation_);
  byte_values_.resize(channels * 256);
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t v = 0; v < 256; ++v) {
      byte_values_[c * 256 + v] = static_cast<float>((static_cast<double>(v) - mean_[c]) / deviation_[c]);
    }
  }
}

std::string Images::name() const {
  return parts_.size() == 1 ? parts_[0].x->path()
                            : fmt::format("{} and {} more", parts_[0].x->path(), parts_.size() - 1);
}

const Images::Part& Images::part_of(std::int64_t sample) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), sample,
                                      [](std::int64_t s, const Part& part) { return s < part.first; });
  return *(after - 1);
}

void Images::normalize(const Part& part, const std::byte* stored, float* out) const {
  const auto channels = static_cast<std::size_t>(shape_[0]);
  const auto pixels = static_cast<std::size_t>(shape_[1] * shape_[2]);
  for (std::size_t c = 0; c < channels; ++c, out += pixels) {
    if (part.bytes) {
      const float* values = &byte_values_[c * 256];
      const auto* bytes = reinterpret_cast<const unsigned char*>(stored) + c * pixels;
      for (std::size_t i = 0; i < pixels; ++i) out[i] = values[bytes[i]];
    } else {
      const auto mean = static_cast<float>(mean_[c]), deviation = static_cast<float>(deviation_[c]);
      std::memcpy(out, stored + c * pixels * sizeof(float), pixels * sizeof(float));
      for (std::size_t i = 0; i < pixels; ++i) out[i] = (out[i] - mean) / deviation;
    }
  }
}

void Images::read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const {
  check_read(samples, x, y);
  float* out = x.data<float>();
  auto* labels = y.data<std::int64_t>();
  for (std::size_t i = 0; i < samples.size(); ++i, out += shape_.numel()) {
    const Part& part = part_of(samples[i]);
    part.x->with_rows(samples[i] - part.first, 1,
                      [&](const std::byte* stored) { normalize(part, stored, out); });
    labels[i] = labels_[static_cast<std::size_t>(samples[i])];
  }
}

void Images::check_labels(std::int64_t classes) const {
  if (classes_ <= classes) return;
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t label = labels_[static_cast<std::size_t>(i)];
    if (label < classes) continue;
    const Part& part = part_of(i);
    throw DataError("{}: label {} of /y is {}, but the model has {} classes (0 to {})", part.x->path(),
                    i - part.first, label, classes, classes - 1);
  }
}

}  // namespace lockstep::data
