#include "lockstep/checkpoint/convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <unordered_set>

#include "base/output.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/weights/foreign.h"
#include "checkpoint/weights/pytorch.h"
#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/source.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/optim/ema.h"

namespace lockstep::checkpoint {
namespace {

/// The type of the tensor in a checkpoint; none if a checkpoint cannot hold it.
std::optional<DType> dtype_to_keep(const StoredTensor& tensor) {
  if (tensor.type_name == "bool") return DType::uint8;
  return tensor.dtype && is_storable(*tensor.dtype) ? tensor.dtype : std::nullopt;
}

/// Indices of the tensors in the source's group and, for an EMA, of those in "model" that it lacks.
std::vector<std::size_t> tensors_to_read(const WeightSource& source) {
  std::unordered_set<std::string_view> in_group;
  for (const StoredTensor& tensor : source.tensors())
    if (tensor.group == source.group()) in_group.insert(tensor.name);
  std::vector<std::size_t> tensors;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const StoredTensor& tensor = source.tensors()[i];
    const bool fills_in =
        source.group().starts_with("ema/") && tensor.group == "model" && !in_group.contains(tensor.name);
    if (!tensor.ignored && (tensor.group == source.group() || fills_in)) tensors.push_back(i);
  }
  return tensors;
}

/// Throws an error that names all tensors that a checkpoint cannot hold.
void check_types(const WeightSource& source, const std::vector<std::size_t>& tensors) {
  constexpr std::size_t max_listed = 24;
  std::vector<std::string> bad;
  for (const std::size_t i : tensors) {
    const StoredTensor& tensor = source.tensors()[i];
    if (!dtype_to_keep(tensor)) bad.push_back(fmt::format("{} is {}", tensor.name, tensor.type_name));
    if (tensor.shape.size() > static_cast<std::size_t>(Shape::max_rank))
      bad.push_back(fmt::format("{} has {} dimensions", tensor.name, tensor.shape.size()));
  }
  if (bad.empty()) return;
  throw DataError(
      "{}: a checkpoint cannot hold: {}; possible are float64, float32, float16, bfloat16, int64, "
      "int32 and uint8, of up to {} dimensions",
      source.path(), list_of(bad, max_listed), Shape::max_rank);
}

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}

void write_checkpoint(const std::string& path, const Weights& weights) {
  const std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  StateDict state_dict;
  state_dict.position = weights.position;
  state_dict.config = weights.config;
  state_dict.provenance = provenance_of(*self);
  for (const auto& [name, value] : weights.provenance) state_dict.provenance[name] = value;
  state_dict.sections.push_back({"model", weights.tensors, {}, {}});
  std::ranges::copy(weights.averages, std::back_inserter(state_dict.sections));
  std::ranges::copy(weights.optimizer, std::back_inserter(state_dict.sections));
  std::ranges::copy(weights.data, std::back_inserter(state_dict.sections));
  for (const NamedTensor& tensor : weights.tensors) {
    if (!is_link_name(tensor.name))
      throw DataError("{}: {} is not a valid name in HDF5", path, quote(tensor.name));
  }
  save_file(path, state_dict, *self,
            {.mark = std::to_string(::getpid()),
             // Conversion keeps such numbers; read_weights has noted them.
             .allow_non_finite = true});
}

}  // namespace

void add_meaning(const FileIndex& index, std::vector<Section>& sections, Provenance& provenance) {
  constexpr std::array facts{"own",     "data_format", "tokenizer", "tokenizer_text",
                             "x_range", "x_type",      "x_shape"};
  for (const char* const fact : facts)
    if (const auto found = index.provenance.find(fact); found != index.provenance.end())
      provenance.insert(*found);
  for (const GroupEntry& group : index.groups) {
    if (!is_data_group(group.path)) continue;
    Section& section = sections.emplace_back(Section{group.path, {}, {}});
    for (const TensorEntry& entry : index.tensors) {
      if (entry.group != group.path) continue;
      const Tensor tensor = Tensor::empty(entry.shape, entry.dtype);
      BlockReader(*index.file, entry, static_cast<std::byte*>(tensor.raw())).finish();
      section.tensors.push_back({entry.name, tensor});
    }
    for (const auto& [name, value] : group.attributes) section.attributes.push_back({name, value, {}});
  }
}

bool is_running_statistic(std::string_view name) {
  return ends_with_any(name, {"running_mean", "running_var", "num_batches_tracked"});
}
bool is_for_python(std::string_view path) { return ends_with_any(path, {".safetensors", ".pt", ".pth"}); }

Weights read_weights(const std::string& path, const std::string& group, const std::string& key,
                     KnownForeign known) {
  const std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  const std::unique_ptr<WeightSource> source = open_weights(path, group, *self, key);
  const std::vector<std::size_t> tensors = tensors_to_read(*source);
  check_types(*source, tensors);
  Weights weights;
  weights.notes = source->notes();
  std::vector<std::string> booleans;
  for (const std::size_t i : tensors) {
    const StoredTensor& stored = source->tensors()[i];
    source->bytes_of(i);  // checks the size before memory is allocated
    const Tensor tensor = Tensor::empty(Shape(std::span(stored.shape)), *dtype_to_keep(stored));
    source->read(i, {static_cast<std::byte*>(tensor.raw()), tensor.bytes()});
    weights.tensors.push_back({stored.name, tensor});
    if (stored.type_name == "bool") booleans.push_back(stored.name);
  }
  if (!booleans.empty())
    weights.notes.push_back(fmt::format("{}: BOOL is stored as uint8: {}", path, list_of(booleans, 1)));
  const std::string not_finite = not_finite_in(weights.tensors);
  if (!not_finite.empty())
    weights.notes.push_back(fmt::format("{}: has numbers that are not finite: {}", path, not_finite));
  weights.position = source->position();
  weights.config = source->config();
  weights.provenance = {{"converted_from", path}};
  const auto note = [&](const char* name, const std::string& fact) {
    if (!fact.empty()) weights.provenance[name] = fact;
  };
  note(weights_layout_key, source->metadata(weights_layout_key));
  note(foreign_config_key, foreign_config(*source, known));
  if (const std::optional<std::int64_t> updates = source->averaged())
    note(n_averaged_key, std::to_string(*updates));
  if (const FileIndex* const index = source->index()) add_meaning(*index, weights.data, weights.provenance);
  if (source->group().starts_with("ema/")) weights.provenance["converted_weights"] = source->group();
  return weights;
}

void add_average(Weights& weights, const std::string& path, const optim::EmaProfile& profile,
                 const Weights& average, const std::string& average_path) {
  Section section{"ema/" + profile.name(), {}, {}, {}};
  if (std::ranges::find(weights.averages, section.path, &Section::path) != weights.averages.end())
    throw UsageError("{}: the weights {} exist already", average_path, section.path);
  // An average of parameters alone leaves running statistics to the model.
  std::vector<NamedTensor> tensors = average.tensors;
  std::unordered_set<std::string_view> averaged;
  for (const NamedTensor& tensor : average.tensors) averaged.insert(strip_wrapper_prefix(tensor.name));
  for (const NamedTensor& tensor : weights.tensors)
    if (is_running_statistic(tensor.name) && !averaged.contains(strip_wrapper_prefix(tensor.name)))
      tensors.push_back(tensor);
  std::vector<StoredTensor> stored;
  for (const NamedTensor& tensor : tensors) {
    const std::span<const std::int64_t> shape = tensor.value.shape().extents();
    const DType dtype = tensor.value.dtype();
    stored.push_back({"", tensor.name, dtype, to_string(dtype), {shape.begin(), shape.end()}});
  }
  const std::vector<RequestedGroup> requested = {{"", weights.tensors, false}};
  const Match same = match(stored, requested, false);
  if (!same.problems.empty())
    throw DataError("{}: is not an average of the weights in {}: {}", average_path, path,
                    fmt::join(same.problems, "; "));
  for (const Match::Pair& pair : same.pairs)
    section.tensors.push_back({pair.target.name, tensors[pair.stored].value, true});
  std::int64_t updates = weights.position.step;
  if (const auto count = average.provenance.find(n_averaged_key); count != average.provenance.end())
    parse_number(count->second, updates);
  section.attributes = {{profile.is_power() ? "sigma_rel" : "rate", profile.parameter(), {}},
                        {"updates", updates, {}}};
  weights.averages.push_back(std::move(section));
}

namespace {

void cast(std::vector<NamedTensor>& tensors, DType dtype) {
  for (NamedTensor& tensor : tensors) {
    const DType from = tensor.value.dtype();
    if (!is_floating(from) || from == dtype) continue;
    const Tensor cast = Tensor::empty(tensor.value.shape(), dtype);
    if (!cast_elements(from, static_cast<const std::byte*>(tensor.value.raw()), dtype,
                       static_cast<std::byte*>(cast.raw()), cast.numel())) {
      throw DataError("{}: has numbers out of the range of {}", tensor.name, to_string(dtype));
    }
    tensor.value = cast;
  }
}

}  // namespace

void cast_floats(Weights& weights, DType dtype) {
  cast(weights.tensors, dtype);
  for (Section& average : weights.averages) cast(average.tensors, dtype);
}

void check_writable(const std::string& path, bool replace, std::span<const std::string> inputs) {
  if (!is_for_python(path) && !ends_with_any(path, {".h5", ".hdf5"})) {
    throw UsageError("{}: give a name that ends with .h5, .safetensors or .pt", path);
  }
  check_output(path, {.replace = replace, .inputs = inputs});
}

void write_weights(const std::string& path, const Weights& weights, bool replace) {
  check_writable(path, replace);
  if (!is_for_python(path)) return write_checkpoint(path, weights);
  if (!weights.averages.empty() || !weights.optimizer.empty())
    throw UsageError("{}: cannot hold averages or an optimizer's state; write a .h5", path);
  std::map<std::string, std::string> metadata;
  if (weights.position != Position{}) {
    for_position(weights.position, [&](const char* name, auto number) {
      metadata[fmt::format("{}{}", position_prefix, name)] = std::to_string(number);
    });
  }
  if (!weights.config.empty()) metadata[config_key] = weights.config;
  if (const auto found = weights.provenance.find(foreign_config_key); found != weights.provenance.end())
    metadata.insert(*found);
  if (!path.ends_with(".safetensors")) return write_pytorch(path, weights.tensors, metadata);
  metadata["format"] = "pt";  // for libraries of Python: names and layouts are PyTorch's
  write_safetensors(path, weights.tensors, metadata);
}

}  // namespace lockstep::checkpoint
