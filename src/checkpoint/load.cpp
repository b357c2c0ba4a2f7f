// Loading: matching names, shapes and types, then reading with each block verified as it arrives.
#include "lockstep/checkpoint/file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <unordered_map>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::checkpoint {
namespace {

struct Problems {
  std::vector<std::string> missing, unexpected, shapes, dtypes, collisions;
};

/// True if the target's type holds every value of the stored type, or `narrow` allows the rounding.
bool loads_as(DType stored, DType target, bool narrow) {
  const std::size_t bytes = bytes_of(stored);
  switch (target) {
    case DType::float64:  // integers would be weights without their scale
      return is_floating(stored);
    case DType::float32:
      return stored == target || (is_floating(stored) && (bytes == 2 || narrow));
    case DType::int64:
      return (bytes <= 4 && !is_floating(stored)) || stored == target;
    case DType::int32:
      return (bytes <= 2 && !is_floating(stored)) || stored == target;
    default:
      return stored == target;
  }
}

std::string text_of(std::span<const std::int64_t> extents) {
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

bool has_shape(const StoredTensor& array, std::span<const std::int64_t> extents) {
  if (!array.transposed) return std::ranges::equal(array.shape, extents);
  return std::equal(array.shape.rbegin(), array.shape.rend(), extents.begin(), extents.end());
}

void match_group(std::span<const StoredTensor> stored, const RequestedGroup& requested, bool narrow,
                 Match& result, Problems& problems) {
  const auto full = [&](std::string_view name) {
    return fmt::format("{}{}{}", requested.group, requested.group.empty() ? "" : "/", name);
  };
  struct Found {
    std::size_t index;
    bool used;
  };
  std::unordered_map<std::string, Found> by_name;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].group != requested.group || stored[i].ignored) continue;
    const auto [place, is_new] =
        by_name.try_emplace(std::string(strip_wrapper_prefix(stored[i].name)), Found{i, false});
    if (!is_new) {
      problems.collisions.push_back(
          fmt::format("{} and {}", full(stored[place->second.index].name), full(stored[i].name)));
    }
  }
  for (const NamedTensor& tensor : requested.tensors) {
    const auto found = by_name.find(std::string(strip_wrapper_prefix(tensor.name)));
    if (found == by_name.end()) {
      problems.missing.push_back(full(tensor.name));
      continue;
    }
    found->second.used = true;
    const StoredTensor& array = stored[found->second.index];
    const auto extents = tensor.shape().extents();
    if (!has_shape(array, extents)) {
      problems.shapes.push_back(fmt::format("{} is {}{} in the file, {} here", full(tensor.name),
                                            text_of(array.shape),
                                            array.transposed ? ", to be transposed," : "", text_of(extents)));
    } else if (!array.dtype || !loads_as(*array.dtype, tensor.value.dtype(), narrow)) {
      problems.dtypes.push_back(fmt::format("{} is {} in the file, {} here", full(tensor.name),
                                            array.type_name, to_string(tensor.value.dtype())));
    } else {
      result.pairs.push_back({found->second.index, tensor});
    }
  }
  if (requested.subset) return;
  // In the order of the file, so that the text is the same on every rank.
  for (const StoredTensor& array : stored) {
    if (array.group != requested.group || array.ignored) continue;
    const Found& found = by_name.at(std::string(strip_wrapper_prefix(array.name)));
    if (!found.used && &stored[found.index] == &array)
      problems.unexpected.push_back(full(strip_wrapper_prefix(array.name)));
  }
}

}  // namespace

std::string list_of(const std::vector<std::string>& names, std::ptrdiff_t most) {
  const auto shown = names.begin() + std::min(std::ssize(names), most);
  std::string text = fmt::format("{}", fmt::join(names.begin(), shown, ", "));
  return shown == names.end() ? text : fmt::format("{} ... and {} more", text, names.end() - shown);
}

Match match(std::span<const StoredTensor> stored, std::span<const RequestedGroup> requested, bool narrow) {
  Match result;
  Problems problems;
  for (const RequestedGroup& group : requested) match_group(stored, group, narrow, result, problems);
  const auto say = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    result.problems.push_back(fmt::format("{}: {}", what, list_of(names)));
  };
  say("missing", problems.missing);
  say("unexpected", problems.unexpected);
  say("wrong shape", problems.shapes);
  say("wrong type", problems.dtypes);
  say("the same name but for wrapper prefixes", problems.collisions);
  result.ambiguous = !problems.collisions.empty();
  return result;
}

namespace {

bool is_ema(const Section& section) { return section.path.starts_with("ema/"); }

/// The value on one line.
std::string shown(const AttributeValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text ? quote(*text) : to_text(value);
}

/// Compares the attributes of a section with those of its group.
void plan_attributes(const Section& section, const GroupEntry& group, LoadPlan& plan,
                     std::vector<std::string>& problems) {
  for (const Attribute& attribute : section.attributes) {
    const auto found = std::find_if(group.attributes.begin(), group.attributes.end(),
                                    [&](const auto& stored) { return stored.first == attribute.name; });
    if (found == group.attributes.end()) {
      problems.push_back(fmt::format("{} lacks the attribute '{}'", section.path, attribute.name));
    } else if (found->second.index() != attribute.value.index()) {
      problems.push_back(
          fmt::format("attribute '{}' of {} is of another type", attribute.name, section.path));
    } else if (attribute.restore) {
      plan.restores.push_back({&attribute, found->second});
    } else if (found->second != attribute.value) {
      problems.push_back(fmt::format("{} of {} is {} in the file, {} here", attribute.name, section.path,
                                     shown(found->second), shown(attribute.value)));
    }
  }
}

void plan_absent(const FileIndex& index, const Section& section, LoadPlan& plan) {
  plan.absent.push_back(&section);
  if (section.tensors.empty()) {
    plan.warnings.push_back(fmt::format("{} has no /{}: it starts again", index.path, section.path));
  } else {
    plan.warnings.push_back(fmt::format("{} has no /{}: it starts from {}", index.path, section.path,
                                        is_ema(section) ? "the weights loaded" : "zero"));
  }
}

void warn_of_unused_groups(const FileIndex& index, LoadPlan& plan) {
  std::vector<std::string> unused;
  for (const GroupEntry& group : index.groups) {
    if (is_data_group(group.path)) continue;  // which says what the weights mean
    if (std::ranges::count(plan.state_dict.sections, group.path, &Section::path) == 0)
      unused.push_back("/" + group.path);
  }
  if (!unused.empty())
    plan.warnings.push_back(
        fmt::format("{} holds {}, which this program does not load", index.path, list_of(unused)));
}

/// Gives the target its part of a whole tensor.
void take(const Tensor& whole, const NamedTensor& target, kernels::Backend* backend) {
  const auto& part = target.part;
  kernels::transfer(part ? part->partition->part(part->param, whole) : whole, target.value, backend);
}

/// EMA weights that the file lacks start from the weights just loaded.
void copy_from_model(const Section& ema, const StateDict& state_dict) {
  std::unordered_map<std::string, Tensor> weights;
  for (const Section& section : state_dict.sections) {
    if (section.path != "model") continue;
    for (const NamedTensor& tensor : section.tensors) weights.emplace(tensor.name, tensor.value);
  }
  for (const NamedTensor& shadow : ema.tensors) {
    const auto found = weights.find(shadow.name);
    if (found != weights.end()) take(found->second, shadow, state_dict.backend);
  }
}

/// Elements of another type than the target's are read into their own memory and cast.
void read_whole(const OpenFile& file, const TensorEntry& entry, const Tensor& target) {
  auto* const out = static_cast<std::byte*>(target.raw());
  if (entry.dtype == target.dtype()) return BlockReader(file, entry, out).finish();
  std::vector<std::byte> elements(entry.bytes);
  BlockReader(file, entry, elements.data()).finish();
  if (!cast_elements(entry.dtype, elements.data(), target.dtype(), out, target.numel())) {
    throw UsageError("{}: {} holds numbers beyond {}", file.path(), entry.path(), to_string(target.dtype()));
  }
}

/// Digests are of whole tensors, so a part, like a tensor on a device, is read through memory for the whole.
void read_tensor(const OpenFile& file, const TensorEntry& entry, const NamedTensor& target,
                 kernels::Backend* backend) {
  const Tensor whole =
      target.part ? Tensor::empty(target.shape(), target.value.dtype()) : kernels::empty_on_cpu(target.value);
  read_whole(file, entry, whole);
  take(whole, target, backend);
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const FileIndex& index) {
  std::vector<StoredTensor> stored;
  stored.reserve(index.tensors.size());
  for (const TensorEntry& tensor : index.tensors) {
    const auto extents = tensor.shape.extents();
    stored.push_back(
        {tensor.group, tensor.name, tensor.dtype, to_string(tensor.dtype), {extents.begin(), extents.end()}});
  }
  return stored;
}

void check_or_warn(const std::string& path, const Match& result, const LoadOptions& options,
                   std::vector<std::string>& warnings) {
  if ((!result.problems.empty() && options.strict) || result.ambiguous) {
    throw DataError("{} does not fit this program's model: {}", path, fmt::join(result.problems, "; "));
  }
  for (const std::string& problem : result.problems) warnings.push_back(fmt::format("{}: {}", path, problem));
}

LoadPlan plan_load(const FileIndex& index, const StateDict& state_dict, const LoadOptions& options) {
  if (state_dict.swapped_in)
    throw UsageError("{}: EMA weights are swapped in; end the evaluation before a load", index.path);
  LoadPlan plan;
  plan.state_dict = state_dict;
  std::vector<RequestedGroup> requested;
  std::vector<std::string> attribute_problems;
  for (const Section& section : plan.state_dict.sections) {
    const GroupEntry* group = index.group(section.path);
    if (!group && section.path != "model") {
      if (!section.tensors.empty() || !section.attributes.empty()) plan_absent(index, section, plan);
      continue;
    }
    requested.push_back({section.path, section.tensors, false});
    if (group) plan_attributes(section, *group, plan, attribute_problems);
  }
  Match result = match(stored_tensors(index), requested, options.narrow);
  result.problems.insert(result.problems.end(), attribute_problems.begin(), attribute_problems.end());
  check_or_warn(index.path, result, options, plan.warnings);
  plan.pairs = std::move(result.pairs);
  warn_of_unused_groups(index, plan);
  return plan;
}

void read_tensors(const FileIndex& index, const LoadPlan& plan, comm::HostGroup& world) {
  comm::run_on_all(world, [&] {
    for (const Match::Pair& pair : plan.pairs)
      read_tensor(*index.file, index.tensors[pair.stored], pair.target, plan.state_dict.backend);
  });
}

void finish_load(const LoadPlan& plan) {
  for (const Section* section : plan.absent) {
    if (is_ema(*section)) {
      copy_from_model(*section, plan.state_dict);
    } else {
      for (const NamedTensor& tensor : section->tensors)
        kernels::transfer(Tensor::zeros(tensor.value.shape(), tensor.value.dtype()), tensor.value,
                          plan.state_dict.backend);
    }
  }
  for (const LoadPlan::Restore& restore : plan.restores) restore.attribute->restore(restore.value);
  for (const Section& section : plan.state_dict.sections) {
    if (section.loaded) section.loaded();
  }
}

LoadReport load_file(const std::string& path, const StateDict& state_dict, comm::HostGroup& world,
                     const LoadOptions& options) {
  const comm::NamedCall call(world, "calls load_file: " + file_name_of(path));
  LoadReport report;
  report.index = read_index(path, world);
  LoadPlan plan;
  comm::run_on_all(world, [&] { plan = plan_load(report.index, state_dict, options); });
  read_tensors(report.index, plan, world);
  comm::run_on_all(world, [&] { finish_load(plan); });
  report.warnings = std::move(plan.warnings);
  return report;
}

}  // namespace lockstep::checkpoint
