#include "checkpoint/weights/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/live_file.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weights/safetensors.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::checkpoint {
namespace {

/// The groups that hold weights of the model, none of an optimizer's.
std::vector<std::string> weight_groups(const FileIndex& index) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.group != "model" && !tensor.group.starts_with("ema/")) continue;
    if (std::ranges::find(names, tensor.group) == names.end()) names.push_back(tensor.group);
  }
  return names;
}

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(FileIndex index, const std::string& group)
      : WeightSource(index.path), index_(std::move(index)) {
    group_ = group.empty() ? index_.default_weights() : group;
    tensors_ = stored_tensors(index_);
    if (std::ranges::any_of(tensors_, [&](const StoredTensor& tensor) { return tensor.group == group_; }))
      return;
    const std::vector<std::string> groups = weight_groups(index_);
    throw DataError("{}: holds no weights '{}', but {}", path_, group_,
                    groups.empty() ? "none at all" : fmt::format("{}", fmt::join(groups, ", ")));
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override {
    BlockReader(*index_.file, index_.tensors.at(tensor), out.data()).finish();
  }
  Position position() const override { return index_.position; }
  const FileIndex* index() const override { return &index_; }

 private:
  FileIndex index_;
};

/// Of the arrays at a file's root: images or tokens to learn from, as `prepare` writes them?
std::string_view kind_of_data(std::span<const StoredTensor> arrays) {
  const auto find = [&](std::string_view name) {
    const auto found = std::ranges::find(arrays, name, &StoredTensor::name);
    return found == arrays.end() ? nullptr : &*found;
  };
  const StoredTensor *x = find("x"), *y = find("y"), *tokens = find("tokens");
  if (arrays.size() == 1 && tokens && tokens->shape.size() == 1 &&
      (tokens->dtype == DType::uint16 || tokens->dtype == DType::uint32 || tokens->dtype == DType::uint64 ||
       tokens->dtype == DType::uint8))
    return "text";
  const bool labelled = arrays.size() == 2 && x && y && y->dtype == DType::int64 && y->shape.size() == 1 &&
                        x->shape.size() > 1 && x->shape.front() == y->shape.front();
  return labelled ? "images" : "";
}

/// The arrays of one group of an HDF5 file, none of those in groups within.
class ArraySource final : public WeightSource {
 public:
  ArraySource(const std::string& path, const std::string& group)
      : WeightSource(path), file_(hdf5::File::open(path)) {
    const bool at_root = group == "model" && !file_.exists(group);
    group_ = at_root ? "" : group;
    const hdf5::Group arrays = file_.open_group(at_root ? "/" : group);
    for (const hdf5::Link& link : arrays.links()) {
      if (link.kind != hdf5::ObjectKind::dataset) continue;
      const hdf5::Dataset dataset = arrays.open_dataset(link.name);
      tensors_.push_back({group_, link.name, dataset.dtype(), dataset.type_name(), dataset.shape()});
    }
    if (at_root && tensors_.empty())
      throw DataError("{}: has no group /model, and no arrays at its root", path);
    const std::string_view data = at_root ? kind_of_data(tensors_) : "";
    if (!data.empty())
      throw DataError("{}: is a data file of {}, not weights; give a checkpoint or a file of named arrays",
                      path, data);
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override {
    const hdf5::Dataset dataset = open(tensor);
    dataset.read(dataset.dtype().value(), out);
  }

 private:
  void check_stored(std::size_t tensor) const override { open(tensor).check_stored(); }
  hdf5::Dataset open(std::size_t tensor) const {
    return file_.open_dataset(group_ + "/" + tensors_.at(tensor).name);
  }

  hdf5::File file_;
};

class SafetensorsSource final : public WeightSource {
 public:
  SafetensorsSource(const std::string& path, const std::string& group) : WeightSource(path), file_(path) {
    if (group != "model")
      throw DataError("{}: holds no weights '{}': a .safetensors file has one set of weights", path, group);
    for (const SafetensorsEntry& entry : file_.header().tensors)
      tensors_.push_back({"", entry.name, entry.dtype, entry.type_name, entry.shape});
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override { file_.read(tensor, out); }
  Position position() const override {
    Position position;
    for (const PositionCount& count : position_counts) read_number(count.name, position.*count.value);
    read_number("seed", position.seed);
    return position;
  }
  std::string metadata(const std::string& key) const override {
    const auto found = file_.header().metadata.find(key);
    return found == file_.header().metadata.end() ? "" : found->second;
  }

 private:
  template <class Number>
  void read_number(const char* name, Number& number) const {
    const std::string key = fmt::format("{}{}", position_prefix, name), text = metadata(key);
    if (text.empty()) return;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || std::cmp_less(number, 0))
      throw DataError("{}: __metadata__: {} = {} is not a number from 0 on", path_, key, quote(text));
  }

  SafetensorsFile file_;
};

enum class Format : std::uint8_t { checkpoint, arrays, safetensors };

Format format_of(const std::string& path) {
  return read_live(path, [&](const std::shared_ptr<const OpenFile>& open) {
    std::array<char, 9> start{};
    if (open->size() == 0) throw DataError("{}: is empty", path);
    open->read_at(0, start.data(), std::min<std::uint64_t>(start.size(), open->size()));
    if (path.ends_with(".safetensors") || start[8] == '{') return Format::safetensors;
    if (std::string_view(start.data(), 4) == "PK\3\4")
      throw DataError(
          "{}: is a zip archive, as torch.save writes: save it from Python with safetensors or h5py", path);
    const hdf5::File file = hdf5::File::open(open->path());
    const bool is_checkpoint = file.has_attribute("format") && file.is_text_attribute("format") &&
                               file.text_attribute("format") == "lockstep";
    return is_checkpoint ? Format::checkpoint : Format::arrays;
  });
}

}  // namespace

bool is_safetensors(const std::string& path) {
  std::array<char, 9> start{};
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const std::shared_ptr<const OpenFile> file = open_live(path);
  if (file->size() < start.size()) return false;
  file->read_at(0, start.data(), start.size());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), sizeof header_bytes);
  return header_bytes <= most_safetensors_header_bytes && start[8] == '{';
}

std::string WeightSource::metadata(const std::string&) const { return {}; }

std::size_t WeightSource::bytes_of(std::size_t tensor) const {
  const StoredTensor& stored = tensors_.at(tensor);
  if (stored.type_name == "text" || stored.type_name == "other")
    throw DataError("{}: {} holds no numbers", path_, stored.name);
  check_stored(tensor);
  const std::size_t element_bytes = stored.dtype ? lockstep::bytes_of(*stored.dtype) : 1;  // bool and float8
  return std::accumulate(
      stored.shape.begin(), stored.shape.end(), element_bytes,
      [](std::size_t bytes, std::int64_t extent) { return bytes * static_cast<std::size_t>(extent); });
}

std::unique_ptr<WeightSource> open_weights(const std::string& path, const std::string& group,
                                           comm::HostGroup& communicator) {
  Format format{};
  comm::run_on_all(communicator, [&] {
    if (communicator.rank() == 0) format = format_of(path);
  });
  communicator.broadcast(&format, sizeof format, 0);
  FileIndex index;
  if (format == Format::checkpoint) index = read_index(path, communicator);
  std::unique_ptr<WeightSource> source;
  const std::string asked = group.empty() ? "model" : group;
  comm::run_on_all(communicator, [&] {
    if (format == Format::checkpoint) source = open_weights(std::move(index), group);
    if (format == Format::arrays) source = std::make_unique<ArraySource>(path, asked);
    if (format == Format::safetensors) source = std::make_unique<SafetensorsSource>(path, asked);
  });
  return source;
}

std::unique_ptr<WeightSource> open_weights(FileIndex index, const std::string& group) {
  return std::make_unique<CheckpointSource>(std::move(index), group);
}

void read_as(const WeightSource& source, const StoredTensor& stored, std::size_t tensor,
             const Tensor& target) {
  auto* const out = static_cast<std::byte*>(target.raw());
  const bool same_type = stored.dtype == target.dtype();
  if (same_type && !stored.transposed) return source.read(tensor, {out, target.bytes()});
  std::vector<std::byte> elements(source.bytes_of(tensor));
  source.read(tensor, elements);
  if (!same_type) {
    std::vector<std::byte> converted(stored.transposed ? target.bytes() : 0);
    if (!cast_elements(stored.dtype.value(), elements.data(), target.dtype(),
                       stored.transposed ? converted.data() : out, target.numel())) {
      throw DataError("{}: {} holds numbers beyond {}", source.path(), stored.name,
                      to_string(target.dtype()));
    }
    if (stored.transposed) elements = std::move(converted);
  }
  if (stored.transposed) {
    transpose_elements(elements.data(), stored.shape.at(0), stored.shape.at(1),
                       lockstep::bytes_of(target.dtype()), out);
  }
}

}  // namespace lockstep::checkpoint
