// Reading labelled images.
#include "lockstep/data/images.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/data_file.h"
#include "data/image_writer.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {
namespace {

/// Extents of one image of a file.
Shape image_shape(const hdf5::Dataset& x) {
  const std::vector<std::int64_t>& n = x.shape();
  if (!x.dtype() || (n.size() != 4 && n.size() != 2)) {
    throw DataError("{}: /x is {} {}, but images are numbers [N, C, H, W], or a table [N, F]", x.file_path(),
                    x.type_name(), shape_text(x));
  }
  return n.size() == 4 ? Shape{n[1], n[2], n[3]} : Shape{n[1], 1, 1};
}

/// All labels of a file, checked.
std::vector<std::int64_t> read_labels(const hdf5::Dataset& y) {
  if (y.shape().size() != 1 || !is_integers(y)) {
    throw DataError("{}: /y is {} {}, but labels are integers [N]", y.file_path(), y.type_name(),
                    shape_text(y));
  }
  std::vector<std::int64_t> labels = y.read_all<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0)
      throw DataError("{}: label {} of /y is {}: labels count from 0", y.file_path(), i, labels[i]);
    // What is beyond int64 arrives as the largest, which is no label either: there is none above it.
    if (labels[i] == std::numeric_limits<std::int64_t>::max()) {
      throw DataError("{}: label {} of /y is {} or more: no model has so many classes", y.file_path(), i,
                      labels[i]);
    }
  }
  return labels;
}

}  // namespace

Images::Images(const std::string& path, const ImagesOptions& options)
    : Images(std::vector<std::string>{path}, options) {}

Images::Images(const std::vector<std::string>& paths, const ImagesOptions& options) {
  if (paths.empty()) throw UsageError("no image files were named");
  fields_ = {{.name = "x"}, {.name = "y", .dtype = DType::int64}};
  std::int64_t memory_left_bytes = options.memory_limit_bytes;
  const bool labelled = options.labels || hdf5::File::open(paths.front()).exists("/y");
  for (const std::string& path : paths) add_file(path, labelled, memory_left_bytes);
  if (!labelled) fields_.pop_back();
  set_statistics(options, paths.front());
}

Images::~Images() = default;

void Images::add_file(const std::string& path, bool labelled, std::int64_t& memory_left_bytes) {
  hdf5::File file = hdf5::File::open(path);
  hdf5::Dataset x = open_images(file);
  const Shape shape = image_shape(x);
  if (labelled) add_labels(file, x.rows());
  if (x.numel() == 0) throw DataError("{}: /x {} has no elements", path, shape_text(x));
  if (!sources_.empty() && !(shape == shape_)) {
    throw DataError("{}: images are {}, but those of {} are {}", path, to_string(shape),
                    sources_.front().x->path(), to_string(shape_));
  }
  shape_ = fields_[0].shape = shape;
  Source source;
  source.first = size_;
  source.rows = x.rows();
  source.bytes = x.dtype() == DType::uint8;
  source.converted = !source.bytes && x.dtype() != DType::float32;
  // Of float64 and large integers, float32 may lose what is left once the mean is taken away.
  const DType as = source.bytes                                               ? DType::uint8
                   : bytes_of(*x.dtype()) >= 4 && x.dtype() != DType::float32 ? DType::float64
                                                                              : DType::float32;
  const FieldMeaning meaning = meaning_of(x);
  if (sources_.empty()) {
    if (x.has_attribute("mean")) mean_ = channel_attribute(x, "mean", shape[0]);
    if (x.has_attribute("std")) deviation_ = channel_attribute(x, "std", shape[0]);
    names_statistics_ = !mean_.empty() || !deviation_.empty();
    const auto channels = static_cast<std::size_t>(shape[0]);
    if (mean_.empty()) mean_.assign(channels, 0.0);
    if (deviation_.empty()) deviation_.assign(channels, source.bytes ? 255.0 : 1.0);
  }
  StoredFiles files;
  source.x = std::make_unique<RowStore>(std::move(file), std::move(x), as, memory_left_bytes, files);
  if (sources_.empty()) x_ = meaning;
  x_.merge("/x", meaning);
  size_ += source.rows;
  sources_.push_back(std::move(source));
}

void Images::add_labels(const hdf5::File& file, std::int64_t images) {
  const std::string& path = file.file_path();
  if (!file.exists("/y"))
    throw DataError(
        "{}: /y does not exist, the labels of its images; where none are needed, data.format = arrays reads "
        "it without",
        path);
  const hdf5::Dataset y = file.open_dataset("/y");
  if (images != y.rows()) throw DataError("{}: /x has {} images and /y {} labels", path, images, y.rows());
  const std::vector<std::int64_t> labels = read_labels(y);
  const FieldMeaning meaning = meaning_of(y);
  if (sources_.empty()) y_ = meaning;
  y_.merge("/y", meaning);
  if (!labels.empty()) fields_[1].classes = std::max(classes(), *std::ranges::max_element(labels) + 1);
  labels_.insert(labels_.end(), labels.begin(), labels.end());
}

FieldMeaning Images::meaning(std::string_view field) const {
  const bool is_x = &field_named(*this, field) == &fields_[0];
  FieldMeaning meaning = is_x ? x_ : y_;
  if (is_x) meaning.by = {.mean = mean_, .deviation = deviation_};
  return meaning;
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
  if (const Images* const other = options.like) {
    if (shape_[0] != other->shape_[0])
      throw DataError("{}: images are {}, but those of {}, which the model was trained on, are {}", name(),
                      to_string(shape_), other->name(), to_string(other->shape_));
    FieldMeaning(other->x_).merge("/x", x_);
    FieldMeaning(other->y_).merge("/y", y_);
    mean_ = other->mean_;
    deviation_ = other->deviation_;
  }
  check_statistics(first_path, {mean_, deviation_});
  byte_values_.resize(channels * 256);
  for (std::size_t i = 0; i < byte_values_.size(); ++i)
    byte_values_[i] =
        static_cast<float>((static_cast<double>(i % 256) - mean_[i / 256]) / deviation_[i / 256]);
}

void Images::normalize(std::vector<double> mean, std::vector<double> deviation) {
  set_statistics({.mean = std::move(mean), .deviation = std::move(deviation)}, name());
}

std::string Images::name() const { return name_of_files(sources_[0].x->path(), sources_.size()); }

std::string Images::location(std::int64_t sample) const {
  const Source& source = source_of(sources_, sample);
  return fmt::format("{}: image {}", source.x->path(), sample - source.first);
}

bool Images::is_finite() const { return std::ranges::all_of(sources_, &Source::bytes); }

void Images::normalize(const Source& source, std::int64_t row, const std::byte* stored, float* out) const {
  const auto channels = static_cast<std::size_t>(shape_[0]);
  const auto pixels = static_cast<std::size_t>(shape_[1] * shape_[2]);
  for (std::size_t c = 0; c < channels; ++c, out += pixels) {
    if (source.bytes) {
      const float* values = &byte_values_[c * 256];
      const auto* bytes = reinterpret_cast<const unsigned char*>(stored) + c * pixels;
      for (std::size_t i = 0; i < pixels; ++i) out[i] = values[bytes[i]];
    } else {
      // A value that is stored as float32 and not finite is the user's choice.
      const auto normalize_channel = [&]<class T>(const T* values) {
        const auto mean = static_cast<T>(mean_[c]), deviation = static_cast<T>(deviation_[c]);
        bool usable = true;
        for (std::size_t i = 0; i < pixels; ++i) {
          out[i] = static_cast<float>((values[i] - mean) / deviation);
          usable &= std::isfinite(out[i]) || (!source.converted && !std::isfinite(values[i]));
        }
        return usable;
      };
      const bool usable = source.x->dtype() == DType::float64
                              ? normalize_channel(reinterpret_cast<const double*>(stored) + c * pixels)
                              : normalize_channel(reinterpret_cast<const float*>(stored) + c * pixels);
      if (!usable) {
        throw DataError(
            "{}: image {} of /x has values in channel {} that are not finite as float32 or once normalised "
            "by mean {} and std {}",
            source.x->path(), row, c, mean_[c], deviation_[c]);
      }
    }
  }
}

void Images::read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const {
  check_read(samples, into);
  float* out = into[0].data<float>();
  std::int64_t* const labels = into.size() > 1 ? into[1].data<std::int64_t>() : nullptr;
  for (std::size_t i = 0; i < samples.size(); ++i, out += shape_.numel()) {
    const Source& source = source_of(sources_, samples[i]);
    const std::int64_t row = samples[i] - source.first;
    source.x->with_rows(row, 1, [&](const std::byte* stored) { normalize(source, row, stored, out); });
    if (labels) labels[i] = labels_[static_cast<std::size_t>(samples[i])];
  }
}

void Images::check_labels(std::int64_t classes) const {
  if (this->classes() <= classes) return;
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t label = labels_[static_cast<std::size_t>(i)];
    if (label < classes) continue;
    const Source& source = source_of(sources_, i);
    throw DataError("{}: label {} of /y is {}, but the model has {} classes (0 to {})", source.x->path(),
                    i - source.first, label, classes, classes - 1);
  }
}

}  // namespace lockstep::data
