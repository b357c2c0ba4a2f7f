#include "lockstep/data/arrays.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "data/array_writer.h"
#include "data/data_file.h"
#include "data/normalize_rows.h"
#include "data/ragged.h"
#include "lockstep/base/error.h"
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
  if (array.shape().empty()) return std::nullopt;
  if (array.is_boolean()) return DType::int64;
  if (!array.dtype()) return std::nullopt;
  return is_floating(*array.dtype()) ? DType::float32 : DType::int64;
}

/// skipped: filled with those that cannot be fields.
std::vector<NamedArray> arrays_at_root(const hdf5::File& file, std::vector<std::string>& skipped) {
  std::vector<NamedArray> found;
  for (const hdf5::Link& link : file.links(hdf5::Group::Order::name)) {
    std::optional<hdf5::Dataset> opened;
    try {
      if (link.kind == hdf5::ObjectKind::dataset || link.kind == hdf5::ObjectKind::unreachable)
        opened.emplace(file.open_dataset(link.name));  // also of another file
    } catch (const DataError& error) {
      if (link.kind == hdf5::ObjectKind::dataset) throw;
      skipped.push_back(error.what());
    }
    if (!opened) continue;
    const hdf5::Dataset& dataset = *opened;
    if ((dataset.dtype() || dataset.is_boolean()) && !dataset.shape().empty())
      found.push_back({link.name, "/" + link.name});
    else
      skipped.push_back(fmt::format("/{} is {} {}", link.name, dataset.type_name(), shape_text(dataset)));
  }
  std::erase_if(found, [&](const NamedArray& one) {  // offsets, but not what may be a field of that name
    return std::ranges::any_of(found, [&](const NamedArray& of) {
      if (one.path != of.path + offsets_suffix) return false;
      const hdf5::Dataset array = file.open_dataset(of.path);
      const Offsets offsets = offsets_of(file, array);
      return offsets.damage.empty() || file.open_dataset(one.path).rows() != array.rows();
    });
  });
  if (found.empty()) {
    throw DataError(
        "{}: has no array of numbers at its root{}{}; data.fields = NAME:/PATH names those elsewhere",
        file.file_path(), skipped.empty() ? "" : ", where ", fmt::join(skipped, ", "));
  }
  return found;
}

/// Extents of one image of a file.
Shape image_shape(const hdf5::Dataset& x) {
  const std::vector<std::int64_t>& n = x.shape();
  if (!x.dtype() || (n.size() != 4 && n.size() != 2)) {
    throw DataError("{}: /x is {} {}, but images are numbers [N, C, H, W], or a table [N, F]", x.file_path(),
                    x.type_name(), shape_text(x));
  }
  return n.size() == 4 ? Shape{n[1], n[2], n[3]} : Shape{n[1], 1, 1};
}

hdf5::Dataset open_labels(const hdf5::File& file, const std::string& path) {
  if (!file.exists(path))
    throw DataError(
        "{}: {} does not exist, the labels of its images; where none are needed, data.format = arrays reads "
        "it without",
        file.file_path(), path);
  hdf5::Dataset y = file.open_dataset(path);
  if (y.shape().size() != 1 || !is_integers(y)) {
    throw DataError("{}: {} is {} {}, but labels are integers [N]", file.file_path(), path, y.type_name(),
                    shape_text(y));
  }
  return y;
}

hdf5::Dataset open_array(const hdf5::File& file, const std::string& path) {
  if (!file.exists(path)) {
    std::vector<std::string> there;
    for (const hdf5::Link& link : file.links(hdf5::Group::Order::name)) there.push_back(link.name);
    throw DataError("{}: {} is missing; the file has {} (data.fields names what is read)", file.file_path(),
                    path, fmt::join(there, ", "));
  }
  hdf5::Dataset array = file.open_dataset(path);
  if (!field_dtype(array) || (array.numel() == 0 && !file.exists(path + offsets_suffix))) {
    throw DataError("{}: {} is {} {}, but a field is numbers [N, ...], one row a sample", file.file_path(),
                    path, array.type_name(), shape_text(array));
  }
  if (array.shape().size() > static_cast<std::size_t>(Shape::max_rank)) {
    throw DataError("{}: {} has {} dimensions; a field has at most {}", file.file_path(), path,
                    array.shape().size(), Shape::max_rank);
  }
  return array;
}

/// By the attributes of /x; what they do not say makes 0 to 1 of bytes and leaves other numbers. A channel
/// that never changes has the deviation 1, with a note.
Normalization named_by(const hdf5::Dataset& x, std::size_t channels, std::vector<std::string>& notes) {
  Normalization by{.mean = std::vector<double>(channels, 0),
                   .deviation = std::vector<double>(channels, x.dtype() == DType::uint8 ? 255 : 1)};
  for (const auto& [attribute, values] : {std::pair("mean", &by.mean), {"std", &by.deviation}})
    if (x.has_attribute(attribute))
      *values = channel_attribute(x, attribute, static_cast<std::int64_t>(channels));
  if (const auto zero = std::ranges::find(by.deviation, 0.0); zero != by.deviation.end()) {
    notes.push_back(fmt::format("{}: std 0 of channel {} of {} counts as 1: it never changes", x.file_path(),
                                zero - by.deviation.begin(), x.name()));
    std::ranges::replace(by.deviation, 0.0, 1.0);
  }
  return by;
}

/// How many samples these arrays of a file have: by their offsets, or one a row. Where that is not the same
/// number, but they have as many rows, what is called NAME_offsets means something else: it is removed, with
/// a note.
std::int64_t samples_of(const std::vector<hdf5::Dataset>& arrays, std::vector<Offsets>& offsets,
                        std::vector<std::string>& notes) {
  const auto samples = [&](std::size_t i) {
    return offsets[i].begins.empty() ? arrays[i].rows() : std::ssize(offsets[i].begins) - 1;
  };
  std::size_t other = 0;
  while (other < arrays.size() && samples(other) == samples(0)) ++other;
  const auto damaged = std::ranges::find_if(offsets, [](const Offsets& one) { return !one.damage.empty(); });
  if (other == arrays.size() && damaged == offsets.end() && samples(0) > 0) return samples(0);
  if (arrays.front().rows() > 0 && std::ranges::all_of(arrays, [&](const hdf5::Dataset& one) {
        return one.rows() == arrays.front().rows();
      })) {
    for (std::size_t i = 0; i < arrays.size(); ++i)
      if (const Offsets unread = std::exchange(offsets[i], {});
          !unread.damage.empty() || !unread.begins.empty())
        notes.push_back(fmt::format(
            "{}: {}{} is not read: by it {} would have {} samples, but all fields have {} rows",
            arrays[i].file_path(), arrays[i].name(), offsets_suffix, arrays[i].name(),
            unread.begins.empty() ? "no" : std::to_string(unread.begins.size() - 1), arrays[i].rows()));
    return arrays.front().rows();
  }
  if (damaged != offsets.end())
    throw DataError("{}; an array that is not the offsets of another one needs another name",
                    damaged->damage);
  const auto of = [&](std::size_t i) {
    return fmt::format("{} has {} {}", arrays[i].name(), samples(i),
                       offsets[i].begins.empty() ? "rows" : "samples by its offsets");
  };
  throw DataError(
      "{}: {} and {}: fields need the same number of rows, one a sample, and at least one; "
      "data.fields chooses which arrays are fields",
      arrays.front().file_path(), of(0), of(other < arrays.size() ? other : arrays.size() - 1));
}

/// Words of data.fields; without targets those whose arrays the first file has, or all if it has none.
std::vector<std::string> fields_of(const Request& request) {
  if (request.targets) return request.fields;
  const hdf5::File file = hdf5::File::open(request.files.front());
  std::vector<std::string> found;
  std::ranges::copy_if(request.fields, std::back_inserter(found), [&](const std::string& word) {
    return file.exists(word.substr(word.find(':') + 1));  // all of it if it has no colon
  });
  return found.empty() ? request.fields : found;
}

void check_named(const std::vector<std::string>& paths) {
  if (paths.empty()) throw UsageError("no data files were named");
}

}  // namespace

Arrays::Arrays(const std::string& path, const ArraysOptions& options)
    : Arrays(std::vector<std::string>{path}, options) {}

Arrays::Arrays(const std::vector<std::string>& paths, const ArraysOptions& options) {
  check_named(paths);
  std::vector<NamedArray> named;
  for (const std::string& word : options.fields) named.push_back(parsed(word));
  if (named.empty()) named = arrays_at_root(hdf5::File::open(paths.front()), skipped_);
  if (named.size() > Batch::max_fields) {
    throw UsageError("{}: {} fields are more than the {} that a batch has; data.fields chooses some",
                     paths.front(), named.size(), Batch::max_fields);
  }
  for (const NamedArray& one : named) {
    if (std::ranges::find(arrays_, one.name, &Array::name) != arrays_.end())
      throw UsageError("data.fields: two fields are named {}", one.name);
    arrays_.push_back({.name = one.name, .path = one.path});
  }
  add_files(paths, options.memory_limit_bytes);
}

Arrays::Arrays(const std::vector<std::string>& paths, std::vector<Array> arrays,
               std::int64_t memory_limit_bytes)
    : arrays_(std::move(arrays)) {
  check_named(paths);
  add_files(paths, memory_limit_bytes);
}

Arrays::Arrays(const Request& request)
    : Arrays(request.files,
             {.fields = fields_of(request), .memory_limit_bytes = request.memory_limit_bytes}) {
  if (request.takes_series) pad("x", "lengths", request);
  pad("y", request.y_lengths, request);
  if (request.targets && request.classifies && request.classes > 0 && has_field(*this, "y"))
    check_labels("y", request.classes);
}

Arrays::~Arrays() = default;

void Arrays::add_files(const std::vector<std::string>& paths, std::int64_t memory_limit_bytes) {
  for (const Array& array : arrays_) fields_.push_back({.name = array.name});
  for (const std::string& path : paths) add_file(path, memory_limit_bytes);
  for (std::size_t i = 0; i < fields_.size(); ++i) make_byte_values(i);
}

/// Only where a file stores bytes: a wide table of floats would take 1 KiB a column for nothing.
void Arrays::make_byte_values(std::size_t field) {
  Array& array = arrays_[field];
  const std::optional<Normalization>& by = array.meaning.by;
  if (!by || std::ranges::none_of(sources_, [&](const Source& source) {
        return source.arrays[field]->dtype() == DType::uint8;
      }))
    return;
  array.byte_values.resize(by->mean.size() * 256);
  for (std::size_t i = 0; i < array.byte_values.size(); ++i)
    array.byte_values[i] =
        static_cast<float>((static_cast<double>(i % 256) - by->mean[i / 256]) / by->deviation[i / 256]);
}

void Arrays::add_file(const std::string& path, std::int64_t& memory_left_bytes) {
  const auto file = std::make_shared<const hdf5::File>(hdf5::File::open(path));
  std::vector<hdf5::Dataset> arrays;
  std::vector<Offsets> offsets;
  for (const Array& known : arrays_) {
    arrays.push_back(known.content == Content::image   ? open_images(*file)
                     : known.content == Content::label ? open_labels(*file, known.path)
                                                       : open_array(*file, known.path));
    const bool may_be_ragged =
        known.content == Content::numbers &&
        std::ranges::find(arrays_, known.path + offsets_suffix, &Array::path) == arrays_.end();
    offsets.push_back(may_be_ragged ? offsets_of(*file, arrays.back()) : Offsets());
    if (arrays.back().numel() == 0 && (arrays.back().rows() > 0 || offsets.back().begins.empty()))
      throw DataError("{}: {} {} has no elements", path, known.path, shape_text(arrays.back()));
  }
  Source source{.first = size_, .rows = samples_of(arrays, offsets, notes_), .arrays = {}, .offsets = {}};
  StoredFiles files;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    Array& known = arrays_[i];
    Field& field = fields_[i];
    hdf5::Dataset& array = arrays[i];
    const bool is_image = known.content == Content::image;
    const Shape shape =
        is_image ? image_shape(array) : Shape(std::span<const std::int64_t>(array.shape()).subspan(1));
    const bool ragged = !source.offsets.emplace_back(std::move(offsets[i].begins)).empty();
    const std::string index_of = index_path(array, known.path);
    const DType dtype = is_image ? DType::float32 : *field_dtype(array);
    FieldMeaning meaning = meaning_of(array);
    if (sources_.empty()) {
      field.shape = shape;
      field.dtype = dtype;
      field.ragged = ragged;
      known.index_of = index_of;
      if (is_image) {
        const Normalization by = named_by(array, static_cast<std::size_t>(shape[0]), notes_);
        if (array.has_attribute("mean") || array.has_attribute("std")) meaning.stored.named = by;
        set_normalization(i, by, path);
        meaning.by = known.meaning.by;
      }
      known.meaning = meaning;
    } else if (!(field.shape == shape) || field.dtype != dtype || field.ragged != ragged ||
               known.index_of != index_of) {
      const auto text = [](DType type, const Shape& of, bool has_offsets, const std::string& target) {
        return fmt::format("{} {}{}{}", to_string(type), to_string(of), has_offsets ? " by offsets" : "",
                           target.empty() ? "" : ", index_of " + target);
      };
      throw DataError("{}: {} has samples {}, but in {} they are {}", path, known.path,
                      text(dtype, shape, ragged, index_of), sources_.front().arrays[i]->path(),
                      text(field.dtype, field.shape, field.ragged, known.index_of));
    }
    known.meaning.merge(known.path, meaning);
    // Until the mean is taken away, values stay as they are stored: float32 may hold too few of their digits.
    DType as = array.dtype() == DType::float64 || array.dtype() == DType::uint8 ? *array.dtype() : dtype;
    if (is_image && as == DType::float32 && array.dtype() != DType::float32 && bytes_of(*array.dtype()) >= 4)
      as = DType::float64;
    source.arrays.push_back(std::make_unique<RowStore>(file, std::move(array), as, memory_left_bytes, files));
    if (known.content == Content::label) add_labels(*source.arrays.back(), i);
  }
  if (sources_.empty()) resolve_indices(path);
  size_ += source.rows;
  sources_.push_back(std::move(source));
}

void Arrays::resolve_indices(const std::string& path) {
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const std::string& wanted = arrays_[i].index_of;
    std::string& name = arrays_[i].meaning.index_of.value.emplace();
    arrays_[i].meaning.index_of.file = path;
    if (wanted.empty()) continue;
    const auto target =
        static_cast<std::size_t>(std::ranges::find(arrays_, wanted, &Array::path) - arrays_.begin());
    if (target == arrays_.size() || !fields_[target].ragged || fields_[i].dtype != DType::int64)
      throw DataError("{}: {} has the attribute index_of for {}, but {}", path, arrays_[i].path, wanted,
                      target == arrays_.size()
                          ? "that is no field: name it in data.fields, or remove the attribute"
                      : !fields_[target].ragged ? fmt::format("that has no {}{}", wanted, offsets_suffix)
                                                : "numbers of rows are integers");
    fields_[i].index_of = name = arrays_[target].name;
  }
}

/// Of field `name` those steps exist that field `lengths` says, if there are both. A note if data.fields
/// leaves lengths out, DataError if the first file lacks those of another.
void Arrays::pad(std::string_view name, const std::string& lengths, const Request& request) {
  if (lengths.empty() || !has_field(*this, name)) return;
  const std::size_t index = field_number(*this, name);
  Field& field = fields_[index];
  if (!has_field(*this, lengths)) {
    for (const std::string& path : request.files) {
      if (!hdf5::File::open(path).exists(lengths)) continue;
      if (request.fields.empty())
        throw DataError(
            "{}: has /{}, but {} has no such numbers, one a sample: all files need them, or none; or "
            "name the fields that are read (data.fields)",
            path, lengths, request.files.front());
      notes_.push_back(
          fmt::format("{}: /{} is not read, because data.fields does not name it: all steps of {} exist",
                      path, lengths, name));
      return;
    }
    return;
  }
  const Field& by = field_named(*this, lengths);
  // Lengths that do not fit are refused where a model and its data are compared.
  if (field.shape.rank() > 0 && !field.ragged && by.dtype == DType::int64 && by.shape.rank() == 0 &&
      !by.ragged)
    field.padded_by = arrays_[index].meaning.padded_by = lengths;
}

void Arrays::add_labels(const RowStore& labels, std::size_t field) {
  labels.for_each_value([&](std::int64_t row, std::int64_t label) {
    if (label < 0)
      throw DataError("{}: label {} of {} is {}: labels count from 0", labels.path(), row,
                      arrays_[field].path, label);
    // What is beyond int64 arrives as the largest, which is no label either: there is none above it.
    if (label == std::numeric_limits<std::int64_t>::max()) {
      throw DataError("{}: label {} of {} is {} or more: no model has so many classes", labels.path(), row,
                      arrays_[field].path, label);
    }
    fields_[field].classes = std::max(fields_[field].classes, label + 1);
  });
}

std::string Arrays::name() const {
  return name_of_files(sources_.front().arrays.front()->path(), sources_.size());
}

std::string Arrays::location(std::int64_t sample) const {
  const Source& source = source_of(sources_, sample);
  return fmt::format("{}: {} {}", source.arrays.front()->path(), data::is_ragged(*this) ? "sample" : "row",
                     sample - source.first);
}

std::pair<std::int64_t, std::int64_t> Arrays::Source::rows_of(std::size_t field, std::int64_t sample,
                                                              std::int64_t count) const {
  const std::vector<std::int64_t>& of = offsets[field];
  if (of.empty()) return {sample, count};
  const auto begin = static_cast<std::size_t>(sample), end = static_cast<std::size_t>(sample + count);
  return {of[begin], of[end] - of[begin]};
}

std::int64_t Arrays::rows(std::size_t field, std::span<const std::int64_t> samples) const {
  return rows_by_sample(fields_[field], samples, [&](std::int64_t sample) {
    if (sample < 0 || sample >= size_) throw UsageError("{}: sample {} of {} asked", name(), sample, size_);
    const Source& source = source_of(sources_, sample);
    return source.rows_of(field, sample - source.first, 1).second;
  });
}

bool Arrays::is_finite() const {
  for (std::size_t i = 0; i < fields_.size(); ++i)
    for (const Source& source : sources_)
      if (is_floating(fields_[i].dtype) && source.arrays[i]->dtype() != DType::uint8) return false;
  return true;
}

FieldMeaning Arrays::meaning(std::string_view field) const {
  return arrays_[field_number(*this, field)].meaning;
}

void Arrays::normalize(std::string_view field, std::optional<Normalization> by) {
  set_normalization(field_number(*this, field), std::move(by), name());
}

void Arrays::set_normalization(std::size_t field, std::optional<Normalization> by, const std::string& files) {
  Array& array = arrays_[field];
  if (by) {
    check_normalization(fmt::format("{}: {}", files, array.path), fields_[field], *by);
    fields_[field].dtype = DType::float32;
  } else {  // all floats alike: files may store them differently
    const bool floats = std::ranges::any_of(
        sources_, [&](const Source& source) { return is_floating(source.arrays[field]->dtype()); });
    fields_[field].dtype = floats ? DType::float64 : DType::int64;
  }
  array.meaning.by = std::move(by);
  make_byte_values(field);
}

void Arrays::hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) {
  std::vector<RowStore*> stores;
  for (const Source& source : sources_)
    for (const std::unique_ptr<RowStore>& array : source.arrays) stores.push_back(array.get());
  RowStore::hold_on_node(stores, world, memory_left_bytes);
}

void Arrays::check_labels(std::string_view field, std::int64_t classes) const {
  const std::size_t index = field_number(*this, field);
  if (fields_[index].dtype != DType::int64 ||
      (fields_[index].classes > 0 && fields_[index].classes <= classes))
    return;
  const Shape& shape = fields_[index].shape;
  const std::int64_t elements = std::max<std::int64_t>(1, shape.numel());
  const std::string& lengths = fields_[index].padded_by;
  const std::vector<double> counted = lengths.empty() ? std::vector<double>() : column(lengths);
  for (const Source& source : sources_) {
    const RowStore& store = *source.arrays[index];
    store.for_each_value([&](std::int64_t element, std::int64_t label) {
      if (!counted.empty() && static_cast<double>(element % elements / (elements / shape[0])) >=
                                  counted[static_cast<std::size_t>(source.first + element / elements)])
        return;
      if (label == ops::CrossEntropyOptions().ignore_index || (label >= 0 && label < classes)) return;
      throw DataError("{}: row {} of {} is {}, but the model has {} classes (0 to {})", store.path(),
                      element / elements, arrays_[index].path, label, classes, classes - 1);
    });
  }
}

template <class Stored>
void Arrays::convert(const Stored* stored, const RowStore& from, std::size_t field, std::int64_t row,
                     const Tensor& into) const {
  const Array& array = arrays_[field];
  const std::optional<Normalization>& by = array.meaning.by;
  const bool padded = !fields_[field].padded_by.empty();
  if (!by) {
    const auto copy = [&](auto* out) {
      using Wanted = std::remove_pointer_t<decltype(out)>;
      std::transform(stored, stored + into.numel(), out, [](Stored v) { return static_cast<Wanted>(v); });
    };
    if (into.dtype() == DType::int64) return copy(into.data<std::int64_t>());
    if (into.dtype() == DType::float64) return copy(into.data<double>());
    float* const out = into.data<float>();
    copy(out);
    if (std::is_same_v<Stored, float> || padded) return;
    const auto* const bad = std::find_if(out, out + into.numel(), [](float v) { return std::isinf(v); });
    if (bad == out + into.numel()) return;
    throw DataError("{}: row {} of {} has values that are not finite as float32", from.path(),
                    row + (bad - out) / fields_[field].shape.numel(), array.path);
  }
  const std::int64_t rows = into.size(0);
  const Shape& shape = fields_[field].shape;
  float* const out = into.data<float>();
  Unusable bad{.row = rows};
  if constexpr (std::is_same_v<Stored, std::uint8_t>) {
    const auto channels = by->mean.size(),
               block = static_cast<std::size_t>(normalization_block(shape, std::ssize(by->mean))),
               blocks = static_cast<std::size_t>(into.numel()) / block;
    for (std::size_t i = 0; i < blocks; ++i) {
      const float* const values = &array.byte_values[i % channels * 256];
      for (std::size_t k = i * block; k < (i + 1) * block; ++k) out[k] = values[stored[k]];
    }
  } else if (std::is_same_v<Stored, float> && array.content == Content::image) {
    // A value that is stored as float32 and not finite is the user's choice.
    bad = normalize_rows<float>(stored, *by, shape, rows, from.is_as_stored(), padded, out);
  } else {
    bad = normalize_rows<double>(stored, *by, shape, rows, false, padded, out);
  }
  if (bad.row == rows) return;
  throw DataError(
      "{}: row {} of {} has values in channel {} that are not finite as float32 or once normalised by mean "
      "{} "
      "and std {}",
      from.path(), row + bad.row, array.path, bad.channel, by->mean[bad.channel], by->deviation[bad.channel]);
}

void Arrays::read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const {
  check_read(samples, into);
  /// Consecutive rows of a file, from a sample on.
  const auto run_from = [&](std::size_t begin, const auto& use) {
    const Source& source = source_of(sources_, samples[begin]);
    std::size_t end = begin + 1;
    while (end < samples.size() && samples[end] == samples[end - 1] + 1 &&
           samples[end] < source.first + source.rows)
      ++end;
    for (std::size_t i = 0; i < into.size(); ++i) {
      const auto [row, count] =
          source.rows_of(i, samples[begin] - source.first, static_cast<std::int64_t>(end - begin));
      if (count > 0) use(*source.arrays[i], i, row, count);
    }
    return end;
  };
  constexpr std::size_t max_expected = 16;
  std::size_t expected = 0, runs = 0;
  std::array<std::int64_t, Batch::max_fields> done{};  // rows of each field
  for (std::size_t begin = 0; begin < samples.size(); --runs) {
    for (; runs <= max_expected && expected < samples.size(); ++runs)
      expected = run_from(expected, [](const RowStore& store, std::size_t, std::int64_t row,
                                       std::int64_t count) { store.expect(row, count); });
    begin = run_from(begin, [&](const RowStore& store, std::size_t field, std::int64_t row,
                                std::int64_t count) {
      const std::int64_t first = std::exchange(done[field], done[field] + count);
      const Tensor rows = into[field].rows(first, done[field]);
      store.with_values(row, count, [&](const auto* stored) { convert(stored, store, field, row, rows); });
    });
  }
}

std::vector<double> Arrays::column(std::string_view name) const {
  const std::size_t field = field_number(*this, name);
  check_column(fields_[field], this->name());
  constexpr std::int64_t rows_at_once = 4096;
  const Tensor part = Tensor::empty(batch_shape(rows_at_once, fields_[field].shape), fields_[field].dtype);
  std::vector<double> values;
  for (const Source& source : sources_) {
    const RowStore& store = *source.arrays[field];
    for (std::int64_t row = 0; row < source.rows; row += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, source.rows - row);
      const Tensor rows = part.rows(0, count);
      store.with_values(row, count, [&](const auto* stored) { convert(stored, store, field, row, rows); });
      append_values(rows, values);
    }
  }
  return values;
}

}  // namespace lockstep::data
