#include "checkpoint/weights/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/run_files.h"
#include "checkpoint/weights/foreign.h"
#include "checkpoint/weights/pytorch.h"
#include "checkpoint/weights/safetensors.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/kernels/backend.h"

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
  std::string metadata(const std::string& key) const override {
    const auto found = index_.provenance.find(key);
    return found == index_.provenance.end() ? "" : found->second;
  }

 private:
  FileIndex index_;
};

/// "text" or "images" if the arrays at a file's root are training data as `prepare` writes it; else empty.
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

/// A file for other programs with one set of weights. Its metadata hold the position.
class ForeignSource : public WeightSource {
 public:
  ForeignSource(const std::string& path, const std::string& group) : WeightSource(path) {
    if (group != "model")
      throw DataError("{}: holds no weights '{}': {} has one set of weights", path, group,
                      foreign_format(path));
  }

  Position position() const override {
    Position position;
    for_position(position, [&](const char* name, auto& number) { read_number(name, number); });
    return position;
  }

 private:
  template <class Number>
  void read_number(const char* name, Number& number) const {
    const std::string key = fmt::format("{}{}", position_prefix, name), text = metadata(key);
    if (!text.empty() && (!parse_number(text, number) || std::cmp_less(number, 0)))
      throw DataError("{}: metadata: {} = {} is not a number from 0 on", path_, key, quote(text));
  }
};

class SafetensorsSource final : public ForeignSource {
 public:
  SafetensorsSource(const std::string& path, const std::string& group)
      : ForeignSource(path, group), file_(path) {
    for (const SafetensorsEntry& entry : file_.header().tensors)
      tensors_.push_back({"", entry.name, entry.dtype, entry.type_name, entry.shape});
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override { file_.read(tensor, out); }
  std::string metadata(const std::string& key) const override {
    const auto found = file_.header().metadata.find(key);
    return found == file_.header().metadata.end() ? "" : found->second;
  }

 private:
  SafetensorsFile file_;
};

class PytorchSource final : public ForeignSource {
 public:
  PytorchSource(const std::string& path, const std::string& group, const std::string& key)
      : ForeignSource(path, group), file_(path, key) {
    for (const PytorchTensor& tensor : file_.tensors())
      tensors_.push_back({"", tensor.name, tensor.dtype, tensor.type_name, tensor.shape});
  }

  void read(std::size_t tensor, std::span<std::byte> out) const override { file_.read(tensor, out); }
  std::string metadata(const std::string& key) const override { return file_.metadata(key); }
  std::vector<std::string> notes() const override { return file_.notes(); }
  nlohmann::json model_args() const override { return file_.model_args(); }

 private:
  PytorchFile file_;
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

enum class Format : std::uint8_t { checkpoint, arrays, safetensors, pytorch };

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
          std::pair{"GGUF", "a GGUF file, which is not read; take the model's .safetensors"}})
      if (start.starts_with(begin)) throw DataError("{}: is {}", path, what);
    if (path.ends_with(".safetensors") || (start.size() > 8 && start[8] == '{')) return Format::safetensors;
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

std::string WeightSource::metadata(const std::string&) const { return {}; }

nlohmann::json WeightSource::model_args() const { return {}; }

std::string WeightSource::config() const {
  std::string text = index() ? index()->config : metadata(config_key);
  if (text.find('\0') != std::string::npos)
    throw DataError("{}: metadata: {} has a null byte inside", path_, config_key);
  return text;
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

std::unique_ptr<WeightSource> open_weights(const std::string& path, const std::string& group,
                                           comm::HostGroup& world, const std::string& key) {
  const Format format = from_rank_0(world, [&] { return format_of(path); });
  FileIndex index;
  if (format == Format::checkpoint) index = read_index(path, world);
  std::unique_ptr<WeightSource> source;
  const std::string asked = group.empty() ? "model" : group;
  comm::run_on_all(world, [&] {
    if (!key.empty() && format != Format::pytorch)
      throw UsageError("{}: is no file of torch.save, of which a key chooses tensors", path);
    if (format == Format::checkpoint) source = open_weights(std::move(index), group);
    if (format == Format::arrays) source = std::make_unique<ArraySource>(path, asked);
    if (format == Format::safetensors) source = std::make_unique<SafetensorsSource>(path, asked);
    if (format == Format::pytorch) source = std::make_unique<PytorchSource>(path, asked, key);
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

namespace {

/// The tensors of the model to load from the requested group, and the buffers to load from "model".
struct Demand {
  std::vector<NamedTensor> own, from_model;
};

Demand demand_of(const ModelState& model, const std::string& group, std::span<const StoredTensor> stored) {
  std::unordered_set<std::string_view> in_group;
  for (const StoredTensor& tensor : stored) {
    if (tensor.group == group) in_group.insert(strip_wrapper_prefix(tensor.name));
  }
  Demand demand;
  for (const Param* param : model.params) demand.own.push_back({param->name, param->value});
  for (const Buffer* buffer : model.buffers) {
    const bool here = !group.starts_with("ema/") || in_group.contains(strip_wrapper_prefix(buffer->name));
    (here ? demand.own : demand.from_model).push_back({buffer->name, buffer->value});
  }
  return demand;
}

/// DataError if what does not match is due to a larger relative of the model.
void check_relatives(const ForeignWeights& by, const WeightSource& source,
                     std::span<const NamedTensor> requested, const Match& match) {
  for (const auto& [tensor, text] : by.relatives) {
    const auto has_it = [name = tensor](const auto& of) { return strip_wrapper_prefix(of.name) == name; };
    if (!match.problems.empty() && std::ranges::any_of(source.tensors(), has_it) &&
        std::ranges::none_of(requested, has_it))
      throw DataError("{}: {}", source.path(), text);
  }
}

/// Matches the model with the file; fills `report` with warnings, notes and provenance.
Match plan(const WeightSource& source, const ForeignWeights& by, std::vector<StoredTensor>& stored,
           const Demand& demand, const LoadOptions& options, LoadReport& report) {
  const Adoption adopted = adopt(by, source, stored, demand.own);
  const std::vector<RequestedGroup> requested = {{source.group(), demand.own, false},
                                                 {"model", demand.from_model, true}};
  Match result = match(stored, requested, options.narrow);
  std::ranges::copy(adopted.problems, std::back_inserter(result.problems));
  check_relatives(by, source, demand.own, result);
  check_or_warn(source.path(), result, options, report.warnings);
  const auto note = [&](const char* key, std::string text) {
    if (!text.empty()) report.provenance[key] = std::move(text);
  };
  const bool is_old = adopted.layout.empty() && source.index();
  note(weights_layout_key, is_old ? source.metadata(weights_layout_key) : adopted.layout);
  const ForeignWeights* const known = &by;
  note(foreign_config_key, foreign_config(source, {&known, 1}));
  if (!adopted.notes.empty())
    report.notes.push_back(fmt::format("{}: stored as {} has it: {}", source.path(), by.program,
                                       fmt::join(adopted.notes, "; ")));
  return result;
}

/// Even partial loading refuses a file without any parameter of the model.
void check_some_match(const std::string& path, const ModelState& model, const Match& match,
                      LoadReport& report) {
  std::set<const void*> targets;
  for (const Match::Pair& pair : match.pairs) targets.insert(pair.target.value.raw());
  const auto taken = std::count_if(model.params.begin(), model.params.end(), [&](const Param* param) {
    return param->value.numel() == 0 || targets.contains(param->value.raw());
  });
  const auto all = static_cast<std::ptrdiff_t>(model.params.size());
  if (match.pairs.empty() && all > 0)
    throw DataError("{}: none of its tensors belongs to this model; is it a file of weights?", path);
  if (taken < all)
    report.notes.push_back(
        fmt::format("{}: {} of {} parameters taken; the others keep their start", path, taken, all));
}

void check_finite(const std::string& path, const ModelState& model, const LoadOptions& options,
                  LoadReport& report) {
  std::vector<NamedTensor> params, buffers;
  for (const Param* param : model.params)
    params.push_back({param->name, kernels::on_cpu(param->value, model.backend)});
  for (const Buffer* buffer : model.buffers)
    buffers.push_back({buffer->name, kernels::on_cpu(buffer->value, model.backend)});
  const std::string in_params = not_finite_in(params), in_buffers = not_finite_in(buffers);
  if (!in_params.empty() && options.finite)
    throw DataError("{}: holds numbers that are not finite: {}; take weights from before they went wrong",
                    path, in_params);
  for (const std::string& names : {in_params, in_buffers}) {
    if (!names.empty())
      report.warnings.push_back(fmt::format("{}: holds numbers that are not finite: {}", path, names));
  }
}

LoadReport load_from(std::unique_ptr<WeightSource> source, const ModelState& model, comm::HostGroup& world,
                     const LoadOptions& options) {
  for (const Param* param : model.params) param->wait_ready();
  const std::string path = source->path();
  LoadReport report;
  report.index.path = path;
  report.notes = source->notes();
  if (source->index()) report.index = *source->index();
  comm::run_on_all(world, [&] {
    report.index.position = source->position();
    report.index.config = source->config();
  });
  std::vector<StoredTensor> stored = source->tensors();
  Match result;
  comm::run_on_all(world, [&] {
    if (swapped_in(model))
      throw UsageError("{}: EMA weights are swapped in; end the evaluation before a load", path);
    static const ForeignWeights as_they_are;
    result = plan(*source, model.foreign ? *model.foreign : as_they_are, stored,
                  demand_of(model, source->group(), stored), options, report);
    check_some_match(path, model, result, report);
  });
  comm::run_on_all(world, [&] {
    for (const Match::Pair& pair : result.pairs) {
      const Tensor here = kernels::empty_on_cpu(pair.target.value);
      read_as(*source, stored[pair.stored], pair.stored, here);
      kernels::transfer(here, pair.target.value, model.backend);
    }
    source.reset();  // the caller may replace the file once it has the report
    check_finite(path, model, options, report);
  });
  return report;
}

std::string call_of_load_weights(const std::string& path, const std::string& group) {
  return fmt::format(
      "calls load_weights (load_weights(path, model) without a group of ranks reads on this rank alone): {} "
      "of {}",
      group, file_name_of(path));
}

}  // namespace

LoadReport load_weights(const std::string& path, const ModelState& model, comm::HostGroup& world,
                        const std::string& group, const LoadOptions& options) {
  const progress::During loads(progress::Phase::load);
  const comm::NamedCall call(world, call_of_load_weights(path, group));
  return load_from(open_weights(path, group, world, options.key), model, world, options);
}

LoadReport load_weights(const std::string& path, const ModelState& model, const std::string& group,
                        const LoadOptions& options) {
  return load_weights(path, model, *comm::make_self_communicator(), group, options);
}

LoadReport load_weights(const FileIndex& index, const ModelState& model, comm::HostGroup& world,
                        const std::string& group, const LoadOptions& options) {
  const progress::During loads(progress::Phase::load);
  const comm::NamedCall call(world, call_of_load_weights(index.path, group));
  std::unique_ptr<WeightSource> source;
  comm::run_on_all(world, [&] { source = open_weights(index, group); });
  return load_from(std::move(source), model, world, options);
}

}  // namespace lockstep::checkpoint
