#include "lockstep/data/arrays.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/data_file.h"
#include "data/image_writer.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/ops/loss.h"

namespace lockstep::data {
namespace {

struct NamedArray {
  std::string name, path;
};

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

/// "x:/fields/density" or "density".
NamedArray parsed(const std::string& word) {
  const std::size_t colon = word.find(':');
  NamedArray array{.name = word.substr(0, colon), .path = {}};
  array.path = colon == std::string::npos ? word : word.substr(colon + 1);
  if (!is_name(array.name) || array.path.empty()) {
    throw UsageError(
        "data.fields: '{}' names no field; write NAME:/PATH/IN/THE/FILE, or NAME for an array at the root",
        word);
  }
  if (!array.path.starts_with('/')) array.path = fmt::format("/{}", array.path);
  return array;
}

/// float32, int64, or none if the array cannot be a field.
std::optional<DType> field_dtype(const hdf5::Dataset& array) {
  if (array.shape().empty() || array.numel() == 0) return std::nullopt;
  if (array.is_boolean()) return DType::int64;
  if (!array.dtype()) return std::nullopt;
  return is_floating(*array.dtype()) ? DType::float32 : DType::int64;
}

/// skipped: filled with those that cannot be fields.
std::vector<NamedArray> arrays_at_root(const hdf5::File& file, std::vector<std::string>& skipped) {
  std::vector<NamedArray> found;
  for (const hdf5::Link& link : file.links(hdf5::Group::Order::name)) {
    if (link.kind != hdf5::ObjectKind::dataset) continue;
    const hdf5::Dataset dataset = file.open_dataset(link.name);
    if ((dataset.dtype() || dataset.is_boolean()) && !dataset.shape().empty())
      found.push_back({link.name, "/" + link.name});
    else
      skipped.push_back(fmt::format("/{} is {} {}", link.name, dataset.type_name(), shape_text(dataset)));
  }
  if (found.empty()) {
    throw DataError(
        "{}: has no array of numbers at its root{}{}; data.fields = NAME:/PATH names those elsewhere",
        file.file_path(), skipped.empty() ? "" : ", where ", fmt::join(skipped, ", "));
  }
  return found;
}

hdf5::Dataset open_array(const hdf5::File& file, const std::string& path) {
  if (!file.exists(path)) {
    std::vector<std::string> there;
    for (const hdf5::Link& link : file.links(hdf5::Group::Order::name)) there.push_back(link.name);
    throw DataError("{}: {} is missing; the file has {} (data.fields names what is read)", file.file_path(),
                    path, fmt::join(there, ", "));
  }
  hdf5::Dataset array = file.open_dataset(path);
  if (!field_dtype(array)) {
    throw DataError("{}: {} is {} {}, but a field is numbers [N, ...], one row a sample", file.file_path(),
                    path, array.type_name(), shape_text(array));
  }
  if (array.shape().size() > static_cast<std::size_t>(Shape::max_rank)) {
    throw DataError("{}: {} has {} dimensions; a field has at most {}", file.file_path(), path,
                    array.shape().size(), Shape::max_rank);
  }
  return array;
}

}  // namespace

std::int64_t normalization_channels(const Shape& sample) {
  return sample.rank() == 1 || sample.rank() >= 3 ? sample[0] : 1;
}

Arrays::Arrays(const std::string& path, const ArraysOptions& options)
    : Arrays(std::vector<std::string>{path}, options) {}

Arrays::Arrays(const std::vector<std::string>& paths, const ArraysOptions& options) {
  if (paths.empty()) throw UsageError("no data files were named");
  std::vector<NamedArray> named;
  for (const std::string& word : options.fields) named.push_back(parsed(word));
  if (named.empty()) named = arrays_at_root(hdf5::File::open(paths.front()), skipped_);
  if (named.size() > Batch::max_fields) {
    throw UsageError("{}: {} fields are more than the {} that a batch has; data.fields chooses some",
                     paths.front(), named.size(), Batch::max_fields);
  }
  for (const NamedArray& array : named) {
    if (std::ranges::find(fields_, array.name, &Field::name) != fields_.end())
      throw UsageError("data.fields: two fields are named {}", array.name);
    fields_.push_back({.name = array.name});
    arrays_.push_back({.path = array.path, .meaning = {}});
  }
  std::int64_t memory_left_bytes = options.memory_limit_bytes;
  for (const std::string& path : paths) add_file(path, memory_left_bytes);
}

Arrays::~Arrays() = default;

void Arrays::add_file(const std::string& path, std::int64_t& memory_left_bytes) {
  Source source{.first = size_, .rows = 0, .arrays = {}};
  StoredFiles files;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    hdf5::File file = hdf5::File::open(path);
    hdf5::Dataset array = open_array(file, arrays_[i].path);
    if (i == 0) source.rows = array.rows();
    if (array.rows() != source.rows) {
      throw DataError(
          "{}: {} has {} rows and {} has {}: fields need the same number of rows, one a sample; data.fields "
          "chooses which arrays are fields",
          path, arrays_[0].path, source.rows, arrays_[i].path, array.rows());
    }
    const std::span<const std::int64_t> extents(array.shape());
    const Shape shape(extents.subspan(1));
    const DType dtype = *field_dtype(array);
    Field& field = fields_[i];
    FieldMeaning meaning = meaning_of(array);
    if (sources_.empty()) {
      field.shape = shape;
      field.dtype = dtype;
    } else if (!(field.shape == shape) || field.dtype != dtype) {
      throw DataError("{}: {} has samples {} {}, but in {} they are {} {}", path, arrays_[i].path,
                      to_string(dtype), to_string(shape), sources_.front().arrays[i]->path(),
                      to_string(field.dtype), to_string(field.shape));
    }
    // Float64 stays until the mean is taken away: float32 may hold too few of its digits.
    const DType as = array.dtype() == DType::float64 ? DType::float64 : dtype;
    source.arrays.push_back(
        std::make_unique<RowStore>(std::move(file), std::move(array), as, memory_left_bytes, files));
    if (sources_.empty()) arrays_[i].meaning = meaning;
    arrays_[i].meaning.merge(arrays_[i].path, meaning);
  }
  size_ += source.rows;
  sources_.push_back(std::move(source));
}

std::string Arrays::name() const {
  return name_of_files(sources_.front().arrays.front()->path(), sources_.size());
}

std::string Arrays::location(std::int64_t sample) const {
  const Source& source = source_of(sources_, sample);
  return fmt::format("{}: row {}", source.arrays.front()->path(), sample - source.first);
}

std::size_t Arrays::index_of(std::string_view field) const {
  const auto found = std::ranges::find(fields_, field, &Field::name);
  if (found == fields_.end()) {
    std::vector<std::string> names;
    for (const Field& one : fields_) names.push_back(one.name);
    throw UsageError("{}: has no field '{}' to normalise; it has {}", name(), field, fmt::join(names, ", "));
  }
  return static_cast<std::size_t>(found - fields_.begin());
}

std::optional<Normalization> Arrays::stored_normalization(std::string_view field) const {
  const Normalization& named = arrays_[index_of(field)].meaning.stored.named;
  return named.mean.empty() ? std::nullopt : std::optional(named);
}

void Arrays::normalize(std::string_view field, Normalization by) {
  const std::size_t index = index_of(field);
  const std::int64_t channels = normalization_channels(fields_[index].shape);
  const std::string where = fmt::format("{}: {}", name(), arrays_[index].path);
  if (std::ssize(by.mean) != channels || std::ssize(by.deviation) != channels) {
    throw DataError("{}: {} means and {} deviations were given for samples {}, which need {}", where,
                    by.mean.size(), by.deviation.size(), to_string(fields_[index].shape), channels);
  }
  check_statistics(where, {by.mean, by.deviation});
  fields_[index].dtype = DType::float32;
  arrays_[index].meaning.by = std::move(by);
}

const Normalization* Arrays::normalization(std::string_view field) const {
  const std::optional<Normalization>& found = arrays_[index_of(field)].meaning.by;
  return found ? &*found : nullptr;
}

FieldMeaning Arrays::meaning(std::string_view field) const { return arrays_[index_of(field)].meaning; }

void Arrays::read_as_stored(std::string_view field) {
  const std::size_t index = index_of(field);
  // All floats alike: the files of a mixture may store them differently.
  const bool floats = is_floating(sources_.front().arrays[index]->dtype());
  fields_[index].dtype = floats ? DType::float64 : DType::int64;
  arrays_[index].meaning.by.reset();
}

void Arrays::check_labels(std::string_view field, std::int64_t classes) const {
  const std::size_t index = index_of(field);
  if (fields_[index].dtype != DType::int64) return;
  const std::int64_t elements = std::max<std::int64_t>(1, fields_[index].shape.numel());
  const std::int64_t chunk = std::max<std::int64_t>(1, (1 << 18) / elements);
  for (const Source& source : sources_) {
    const RowStore& store = *source.arrays[index];
    for (std::int64_t row = 0; row < source.rows; row += chunk) {
      const std::int64_t count = std::min(chunk, source.rows - row);
      store.with_rows(row, count, [&](const std::byte* stored) {
        const std::span labels(reinterpret_cast<const std::int64_t*>(stored),
                               static_cast<std::size_t>(count * elements));
        const auto bad = std::ranges::find_if(labels, [classes](std::int64_t label) {
          return label != ops::CrossEntropyOptions().ignore_index && (label < 0 || label >= classes);
        });
        if (bad != labels.end())
          throw DataError("{}: row {} of {} is {}, but the model has {} classes (0 to {})", store.path(),
                          row + (bad - labels.begin()) / elements, arrays_[index].path, *bad, classes,
                          classes - 1);
      });
    }
  }
}

template <class From>
void Arrays::convert(const From* from, const Source& source, std::size_t field, std::int64_t row,
                     const Tensor& into) const {
  const Array& array = arrays_[field];
  const std::optional<Normalization>& by = array.meaning.by;
  const std::int64_t elements = fields_[field].shape.numel();
  const std::int64_t channels = normalization_channels(fields_[field].shape), block = elements / channels;
  float* out = into.data<float>();
  for (std::int64_t i = 0; i < into.size(0); ++i) {
    bool usable = true, stored_finite = true;
    for (std::int64_t c = 0; c < channels; ++c, from += block, out += block) {
      const double mean = by ? by->mean[static_cast<std::size_t>(c)] : 0;
      const double deviation = by ? by->deviation[static_cast<std::size_t>(c)] : 1;
      for (std::int64_t k = 0; k < block; ++k) {
        out[k] = static_cast<float>((static_cast<double>(from[k]) - mean) / deviation);
        usable &= by ? std::isfinite(out[k]) : !std::isinf(out[k]);
        stored_finite &= std::isfinite(static_cast<double>(from[k]));
      }
    }
    if (!usable) {
      throw DataError("{}: row {} of {} has values that are not finite{}", source.arrays[field]->path(),
                      row + i, array.path,
                      !stored_finite ? ""
                      : by           ? " as float32 once they are normalised"
                                     : " as float32");
    }
  }
}

void Arrays::convert(const Source& source, std::size_t field, std::int64_t row, const std::byte* stored,
                     const Tensor& into) const {
  const DType from = source.arrays[field]->dtype();
  if (!arrays_[field].meaning.by && from == into.dtype()) {
    std::memcpy(into.raw(), stored, into.bytes());
  } else if (into.dtype() == DType::float64) {
    std::copy_n(reinterpret_cast<const float*>(stored), into.numel(), into.data<double>());
  } else if (from == DType::int64) {
    convert(reinterpret_cast<const std::int64_t*>(stored), source, field, row, into);
  } else if (from == DType::float64) {
    convert(reinterpret_cast<const double*>(stored), source, field, row, into);
  } else {
    convert(reinterpret_cast<const float*>(stored), source, field, row, into);
  }
}

void Arrays::read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const {
  check_read(samples, into);
  for (std::size_t begin = 0, end = 0; begin < samples.size(); begin = end) {  // a run of rows at a time
    const Source& source = source_of(sources_, samples[begin]);
    for (end = begin + 1; end < samples.size() && samples[end] == samples[end - 1] + 1 &&
                          samples[end] < source.first + source.rows;)
      ++end;
    const std::int64_t row = samples[begin] - source.first, count = static_cast<std::int64_t>(end - begin);
    for (std::size_t i = 0; i < into.size(); ++i) {
      const Tensor rows = into[i].rows(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
      source.arrays[i]->with_rows(row, count,
                                  [&](const std::byte* stored) { convert(source, i, row, stored, rows); });
    }
  }
}

Normalization normalization_of(const Dataset& dataset, std::string_view field_name, comm::HostGroup& world) {
  const comm::NamedCall call(world, "calls normalization_of");
  constexpr std::int64_t chunk_elements = 1 << 18;
  const Field& field = field_named(dataset, field_name);
  if (field.dtype != DType::float32 && field.dtype != DType::float64 && field.dtype != DType::int64)
    throw UsageError("{}: field {} is {}, which cannot be normalised", dataset.name(), field_name,
                     to_string(field.dtype));
  const std::int64_t elements = field.shape.numel(), channels = normalization_channels(field.shape),
                     block = elements / channels;
  const auto width = static_cast<std::size_t>(channels);
  const std::int64_t rows =
      std::clamp<std::int64_t>(chunk_elements / std::max<std::int64_t>(1, elements), 1, 4096);
  EvalBatches batches(dataset, rows, world);
  // Twice through the data: sums about the mean lose nothing where the mean is far from 0.
  const auto sums_of = [&](const auto& term) {
    std::vector<double> sums;
    const comm::ShardRange mine = batches.mine();
    comm::run_on_all(world, [&] {
      for (int chunk = mine.first; chunk < mine.end(); ++chunk) {
        const Batch& batch = batches.read(chunk);
        const Tensor& values = batch[field_name];
        const std::size_t at = sums.size();
        sums.resize(at + width);
        for (std::int64_t e = 0; e < values.numel(); ++e) {
          const double value =
              values.dtype() == DType::int64     ? static_cast<double>(values.data<std::int64_t>()[e])
              : values.dtype() == DType::float64 ? values.data<double>()[e]
                                                 : static_cast<double>(values.data<float>()[e]);
          if (!std::isfinite(value))
            throw DataError("{} of field {} holds {}: the field cannot be normalised",
                            dataset.location(chunk * rows + e / elements), field_name, value);
          const auto channel = static_cast<std::size_t>(e % elements / block);
          sums[at + channel] += term(value, channel);
        }
      }
    });
    return batches.sum(world, sums, static_cast<int>(width));
  };
  const double count = static_cast<double>(dataset.size()) * static_cast<double>(block);
  Normalization found{.mean = sums_of([](double value, std::size_t) { return value; }), .deviation = {}};
  for (double& mean : found.mean) mean /= count;
  found.deviation = sums_of([&](double value, std::size_t channel) {
    return (value - found.mean[channel]) * (value - found.mean[channel]);
  });
  for (std::size_t c = 0; c < width; ++c) {
    found.deviation[c] = std::sqrt(found.deviation[c] / count);
    if (found.deviation[c] < 1e-30) found.deviation[c] = 1;
  }
  return found;
}

}  // namespace lockstep::data
