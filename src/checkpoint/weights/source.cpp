#include "checkpoint/weights/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "checkpoint/run_files.h"
#include "checkpoint/weights/pytorch.h"
#include "checkpoint/weights/safetensors.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::checkpoint {
namespace {

/// The groups that hold weights of the model, without those of the optimizer.
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
    throw DataError("{}: has no weights '{}', but {}", path_, group_,
                    groups.empty() ? "none at all" : fmt::format("{}", fmt::join(groups, ", ")));
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override {
    BlockReader(*index_.file, index_.tensors.at(tensor), out.data()).finish();
  }
  Position position() const override { return index_.position; }
  const FileIndex* index() const override { return &index_; }
  std::string metadata(const std::string& key) const override {
    const auto found = index_.provenance.find(key);
    return found == index_.provenance.end() ? "" : found->second;
  }

 private:
  FileIndex index_;
};

/// "text" or "images" if the arrays at a file's root are training data from `prepare`; otherwise empty.
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

/// The arrays of one group of an HDF5 file, without its subgroups.
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

/// The first bytes of a file, enough to tell its format.
std::string start_of(const OpenFile& file) {
  constexpr std::uint64_t max_bytes = 512;
  std::string start(std::min(max_bytes, file.size()), '\0');
  file.read_at(0, start.data(), start.size());
  return start;
}

/// Eight bytes with the size of a JSON object, and its beginning.
bool begins_as_safetensors(std::string_view start) {
  std::uint64_t header_bytes = 0;
  if (start.size() <= sizeof header_bytes || start[sizeof header_bytes] != '{') return false;
  std::memcpy(&header_bytes, start.data(), sizeof header_bytes);
  return header_bytes <= max_safetensors_header_bytes;
}

/// The tensors of the files that an index of Hugging Face names: {"weight_map": {TENSOR: FILE}}.
class ShardedSource final : public WeightSource {
 public:
  explicit ShardedSource(const std::string& path) : WeightSource(path) {
    const nlohmann::json index = nlohmann::json::parse(read_text(path), nullptr, false);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (!index.is_object() || map == index.end() || !map->is_object())
      throw DataError("{}: is not an index of weights: it has no object weight_map", path);
    std::map<std::string, std::vector<std::string>> names;  // by file
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string()) throw DataError("{}: weight_map names no file of {}", path, quote(tensor));
      names[file.get<std::string>()].push_back(tensor);
    }
    for (auto& [file, tensors] : names) add(file, tensors);
    notes_.push_back(fmt::format("{}: reads {} in {}", path, pluralized(tensors_.size(), "tensor"),
                                 pluralized(shards_.size(), "file")));
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override {
    const auto& [shard, index] = places_.at(tensor);
    shards_[shard]->read(index, out);
  }
  std::string metadata(const std::string& key) const override {
    return shards_.empty() ? "" : shards_.front()->metadata(key);
  }

 private:
  void add(const std::string& file, const std::vector<std::string>& names) {
    if (file.find('/') != std::string::npos || file.empty() || file.starts_with('.'))
      throw DataError("{}: weight_map names {}, which is no file beside it", path_, quote(file));
    const std::string shard = directory_of(path_) + "/" + file;
    if (!exists(shard)) throw DataError("{}: names the file {}, which is not there", path_, shard);
    if (foreign_format(shard).starts_with("a file of torch"))
      shards_.push_back(std::make_unique<PytorchFile>(shard));
    else
      shards_.push_back(std::make_unique<SafetensorsFile>(shard));
    std::unordered_map<std::string_view, std::size_t> there;
    const std::vector<StoredTensor>& stored = shards_.back()->tensors();
    for (std::size_t i = 0; i < stored.size(); ++i) there.emplace(stored[i].name, i);
    for (const std::string& name : names) {
      const auto found = there.find(name);
      if (found == there.end()) throw DataError("{}: lacks {}, which {} names", shard, quote(name), path_);
      tensors_.push_back(stored[found->second]);
      places_.emplace_back(shards_.size() - 1, found->second);
    }
  }

  std::vector<std::unique_ptr<WeightSource>> shards_;
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // of each tensor: shard, and index there
};

/// The parts of "model-00002-of-00005.safetensors"; none of other names, or of a single file.
struct ShardName {
  std::string index;  // "model.safetensors.index.json"
  int number = 0, count = 0;
};

std::optional<ShardName> shard_name(const std::string& path) {
  static const std::regex pattern(R"((.*)-(\d{5})-of-(\d{5})(\.safetensors|\.bin))");
  std::smatch parts;
  const std::string name = file_name_of(path);
  if (!std::regex_match(name, parts, pattern) || std::stoi(parts[3]) < 2) return std::nullopt;
  return ShardName{fmt::format("{}{}.index.json", parts[1].str(), parts[4].str()), std::stoi(parts[2]),
                   std::stoi(parts[3])};
}

/// The weights in a folder of Hugging Face; other paths stay.
std::string file_in_folder(const std::string& path) {
  if (!is_directory(path)) return path;
  for (const char* const name : {"model.safetensors.index.json", "model.safetensors",
                                 "pytorch_model.bin.index.json", "pytorch_model.bin"})
    if (exists(path + "/" + name)) return path + "/" + name;
  return path;  // opening it reports the error
}

enum class Format : std::uint8_t { checkpoint, arrays, safetensors, pytorch, shards };

Format format_of(const std::string& path) {
  return read_live(path, [&](const std::shared_ptr<const OpenFile>& open) {
    const std::string start = start_of(*open);
    if (start.empty()) throw DataError("{}: is empty", path);
    if (begins_as_zip(start)) return Format::pytorch;
    if (begins_as_old_pytorch(start))
      throw DataError(
          "{}: is in the format that torch.save wrote before PyTorch 1.6; load it in a newer one, and save "
          "it again",
          path);
    for (const auto& [begin, what] :
         {std::pair{"version https://git-lfs", "a pointer of Git LFS; git lfs pull fetches the file itself"},
          std::pair{"GGUF", "a GGUF file, which is not supported; use the model's .safetensors"}})
      if (start.starts_with(begin)) throw DataError("{}: is {}", path, what);
    if (path.ends_with(".index.json")) return Format::shards;
    if (path.ends_with(".safetensors") || (start.size() > 8 && start[8] == '{')) return Format::safetensors;
    if (is_for_python(path) && !start.starts_with("\x89HDF"))
      throw DataError("{}: is not a PyTorch file: it does not begin as one of torch.save does", path);
    const hdf5::File file = hdf5::File::open(open->path());
    const bool is_checkpoint = file.has_attribute("format") && file.is_text_attribute("format") &&
                               file.text_attribute("format") == "lockstep";
    return is_checkpoint ? Format::checkpoint : Format::arrays;
  });
}

}  // namespace

std::string_view foreign_format(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  const std::string start = start_of(*open_live(path));
  if (begins_as_zip(start)) return "a file of torch.save";
  return begins_as_safetensors(start) ? "a .safetensors file" : "";
}

Position WeightSource::position() const {
  Position position;
  for_position(position, [&](const char* name, auto& number) {
    const std::string key = fmt::format("{}{}", position_prefix, name), text = metadata(key);
    if (!text.empty() && (!parse_number(text, number) || std::cmp_less(number, 0)))
      throw DataError("{}: metadata: {} = {} is not a number from 0 on", path_, key, quote(text));
  });
  return position;
}

std::string WeightSource::metadata(const std::string&) const { return {}; }

nlohmann::json WeightSource::model_args() const { return {}; }

std::string WeightSource::config() const {
  std::string text = index() ? index()->config : metadata(config_key);
  if (text.find('\0') != std::string::npos)
    throw DataError("{}: metadata: {} has a null byte inside", path_, config_key);
  return text;
}

std::string WeightSource::part_of() const {
  const std::optional<ShardName> shard = shard_name(path_);
  return shard ? fmt::format("it is {} of {} files: give {}", shard->number, shard->count, shard->index) : "";
}

void WeightSource::leave_out_count() {
  if (const std::string part = part_of(); !part.empty()) notes_.push_back(fmt::format("{}: {}", path_, part));
  StoredTensor* count = nullptr;
  for (StoredTensor& tensor : tensors_) {
    const std::string_view name = strip_wrapper_prefix(tensor.name);
    if (name == "n_averaged" && tensor.dtype == DType::int64 && tensor.shape.empty())
      count = &tensor;
    else if (name.size() == tensor.name.size())
      return;  // not wrapped, so this is a model's own
  }
  if (!count || tensors_.size() < 2) return;
  std::int64_t updates = 0;
  read(static_cast<std::size_t>(count - tensors_.data()), std::as_writable_bytes(std::span(&updates, 1)));
  count->ignored = true;
  averaged_ = updates;
  notes_.push_back(fmt::format("{}: n_averaged = {} is the number of updates of an AveragedModel: left out",
                               path_, updates));
}

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

std::unique_ptr<WeightSource> open_weights(const std::string& given, const std::string& group,
                                           comm::HostGroup& world, const std::string& key) {
  const std::string path = from_rank_0(world, [&] { return file_in_folder(given); });
  const Format format = from_rank_0(world, [&] { return format_of(path); });
  FileIndex index;
  if (format == Format::checkpoint) index = read_index(path, world);
  std::unique_ptr<WeightSource> source;
  const std::string group_to_read = group.empty() ? "model" : group;
  comm::run_on_all(world, [&] {
    if (!key.empty() && format != Format::pytorch)
      throw UsageError("{}: is not a file of torch.save, which a key needs", path);
    if (format != Format::checkpoint && format != Format::arrays && group_to_read != "model")
      throw DataError("{}: has no weights '{}': {} has one set of weights", path, group_to_read,
                      format == Format::shards ? "an index" : foreign_format(path));
    if (format == Format::checkpoint) source = open_weights(std::move(index), group);
    if (format == Format::arrays) source = std::make_unique<ArraySource>(path, group_to_read);
    if (format == Format::safetensors) source = std::make_unique<SafetensorsFile>(path);
    if (format == Format::pytorch) source = std::make_unique<PytorchFile>(path, key);
    if (format == Format::shards) source = std::make_unique<ShardedSource>(path);
    if (format != Format::checkpoint) source->leave_out_count();
  });
  return source;
}

std::unique_ptr<WeightSource> open_weights(FileIndex index, const std::string& group) {
  return std::make_unique<CheckpointSource>(std::move(index), group);
}

}  // namespace lockstep::checkpoint
