// Loading: matches names, shapes and types, then reads; also weights alone, from a file of any format.
#include "lockstep/checkpoint/file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/files.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/weights/foreign.h"
#include "checkpoint/weights/source.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::checkpoint {
namespace {

struct Problems {
  std::vector<std::string> missing, unexpected, shapes, dtypes, collisions;
  bool can_narrow = false;
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
      problems.can_narrow |= array.dtype && loads_as(*array.dtype, tensor.value.dtype(), true);
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
  if (problems.can_narrow)
    result.problems.emplace_back(
        "checkpoint.narrow = true (lockstep convert: --dtype float32) rounds float64 to float32");
  say("the same name but for wrapper prefixes", problems.collisions);
  result.ambiguous = !problems.collisions.empty();
  return result;
}

namespace {

bool is_ema(const Section& section) { return section.path.starts_with("ema/"); }

/// The value on one line.
std::string line_of(const AttributeValue& value) {
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
                                     line_of(found->second), line_of(attribute.value)));
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
    if (is_data_group(group.path)) continue;  // the meaning of the weights
    if (std::ranges::count(plan.state_dict.sections, group.path, &Section::path) == 0)
      unused.push_back("/" + group.path);
  }
  if (!unused.empty())
    plan.warnings.push_back(
        fmt::format("{} holds {}, which this program does not load", index.path, list_of(unused)));
}

/// Copies the target's part of a whole tensor.
void take(const Tensor& whole, const NamedTensor& target, kernels::Backend* backend) {
  const auto& part = target.part;
  kernels::transfer(part ? part->partition->part(part->param, whole) : whole, target.value, backend);
}

/// EMA weights that the file lacks start from the loaded weights.
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

namespace {

/// The tensors of the model to load from the requested group, and the buffers to load from "model".
struct Demand {
  std::vector<NamedTensor> own, from_model;
  std::vector<std::string> absent;  ///< optional buffers that the file lacks
};

Demand demand_of(const ModelState& model, const std::string& group, std::span<const StoredTensor> stored,
                 bool params_only) {
  std::unordered_set<std::string_view> in_group;
  for (const StoredTensor& tensor : stored) {
    if (tensor.group == group) in_group.insert(strip_wrapper_prefix(tensor.name));
  }
  Demand demand;
  for (const Param* param : model.params) demand.own.push_back({param->name, param->value});
  for (const Buffer* buffer : model.buffers) {
    const bool is_there = in_group.contains(strip_wrapper_prefix(buffer->name)),
               here = !group.starts_with("ema/") || is_there;
    if (here && !is_there && (buffer->optional || params_only))
      demand.absent.push_back(buffer->name);
    else
      (here ? demand.own : demand.from_model).push_back({buffer->name, buffer->value});
  }
  return demand;
}

/// DataError if the mismatch is due to a larger relative of the model.
void check_relatives(const ForeignWeights& by, const WeightSource& source,
                     std::span<const NamedTensor> requested, const Match& match) {
  for (const auto& [tensor, text] : by.relatives) {
    const auto has_it = [name = tensor](const auto& of) { return strip_wrapper_prefix(of.name) == name; };
    if (!match.problems.empty() && std::ranges::any_of(source.tensors(), has_it) &&
        std::ranges::none_of(requested, has_it))
      throw DataError("{}: {}", source.path(), text);
  }
}

/// Removes what all names of a group begin with ("model."), if some names then are the model's and none was
/// before: the words up to a dot that leave most of them. Returns it; empty if nothing changed.
std::string strip_shared_prefix(std::vector<StoredTensor>& stored, const std::string& group,
                                const ModelState& model) {
  std::unordered_set<std::string_view> wanted;
  for (const Param* param : model.params) wanted.insert(strip_wrapper_prefix(param->name));
  std::vector<StoredTensor*> all;
  for (StoredTensor& tensor : stored)
    if (tensor.group == group && !tensor.ignored) all.push_back(&tensor);
  if (all.empty()) return {};
  const auto fitting = [&](std::size_t length) {
    return std::ranges::count_if(all, [&](const StoredTensor* tensor) {
      return wanted.contains(strip_wrapper_prefix(strip_wrapper_prefix(tensor->name).substr(length)));
    });
  };
  if (fitting(0) > 0) return {};
  const std::string first(strip_wrapper_prefix(all.front()->name));
  std::size_t best = 0;
  std::ptrdiff_t most = 0;
  for (std::size_t dot = first.find('.'); dot != std::string::npos; dot = first.find('.', dot + 1)) {
    const std::string_view prefix = std::string_view(first).substr(0, dot + 1);
    if (!std::ranges::all_of(all, [&](const StoredTensor* tensor) {
          return strip_wrapper_prefix(tensor->name).starts_with(prefix);
        }))
      break;
    if (const std::ptrdiff_t count = fitting(prefix.size()); count > most) best = prefix.size(), most = count;
  }
  if (best == 0) return {};
  for (StoredTensor* const tensor : all)
    tensor->name = std::string(strip_wrapper_prefix(tensor->name).substr(best));
  return first.substr(0, best);
}

/// Matches the model with the file, whose names had a common prefix or none; fills `report` with warnings,
/// notes and provenance.
Match plan(const WeightSource& source, const ForeignWeights& by, std::vector<StoredTensor>& stored,
           const Demand& demand, const std::string& prefix, const LoadOptions& options, LoadReport& report) {
  const Adoption adopted = adopt(by, source, stored, demand.own);
  const std::vector<RequestedGroup> requested = {{source.group(), demand.own, false},
                                                 {"model", demand.from_model, true}};
  Match result = match(stored, requested, options.narrow);
  std::ranges::copy(adopted.problems, std::back_inserter(result.problems));
  check_relatives(by, source, demand.own, result);
  if (const std::string part = source.part_of(); !part.empty() && !result.problems.empty())
    result.problems.push_back(part);
  if (!prefix.empty())
    (result.problems.empty() ? report.notes : result.problems)
        .push_back(
            fmt::format("{}: the names were read without their common prefix {}", source.path(), prefix));
  check_or_warn(source.path(), result, options, report.warnings);
  const auto note = [&](const char* key, std::string text) {
    if (!text.empty()) report.provenance[key] = std::move(text);
  };
  if (const std::optional<std::int64_t> updates = source.averaged())
    note(n_averaged_key, std::to_string(*updates));
  const bool is_old = adopted.layout.empty() && source.index();
  note(weights_layout_key, is_old ? source.metadata(weights_layout_key) : adopted.layout);
  const ForeignWeights* const known = &by;
  note(foreign_config_key, foreign_config(source, {&known, 1}));
  if (!demand.absent.empty())
    report.notes.push_back(
        fmt::format("{}: lacks {}, which keep their values", source.path(), list_of(demand.absent)));
  if (!adopted.notes.empty())
    report.notes.push_back(fmt::format("{}: stored in the layout of {}: {}", source.path(), by.program,
                                       fmt::join(adopted.notes, "; ")));
  return result;
}

/// Even partial loading refuses a file without any parameter of the model.
void check_some_match(const std::string& path, const ModelState& model, const Match& match,
                      LoadReport& report) {
  std::set<const void*> targets;
  for (const Match::Pair& pair : match.pairs) targets.insert(pair.target.value.raw());
  std::vector<std::string> others;
  for (const Param* const param : model.params)
    if (param->value.numel() > 0 && !targets.contains(param->value.raw())) others.push_back(param->name);
  const std::size_t all = model.params.size();
  if (match.pairs.empty() && all > 0)
    throw DataError("{}: no tensor belongs to this model; is it a file of weights?", path);
  if (!others.empty())
    report.notes.push_back(fmt::format("{}: {} of {} parameters loaded; new, with their initial values: {}",
                                       path, all - others.size(), all, list_of(others)));
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
    throw DataError("{}: has numbers that are not finite: {}; load earlier weights", path, in_params);
  for (const std::string& names : {in_params, in_buffers}) {
    if (!names.empty())
      report.warnings.push_back(fmt::format("{}: has numbers that are not finite: {}", path, names));
  }
}

/// Reads the elements of a stored tensor into `target`, transposed if marked so and cast to its type.
/// DataError as read(), and if a number is out of the range of that type.
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
      throw DataError("{}: {} has numbers out of the range of {}", source.path(), stored.name,
                      to_string(target.dtype()));
    }
    if (stored.transposed) elements = std::move(converted);
  }
  if (stored.transposed) {
    transpose_elements(elements.data(), stored.shape.at(0), stored.shape.at(1),
                       lockstep::bytes_of(target.dtype()), out);
  }
}

/// Each tensor is read by one rank, which sends it to the others.
void read_pairs(const WeightSource& source, std::span<const StoredTensor> stored,
                std::span<const Match::Pair> pairs, kernels::Backend* backend, comm::HostGroup& world) {
  std::vector<std::uint64_t> facts{source.index() ? source.index()->digest : 0};
  for (const Match::Pair& pair : pairs) {
    const Tensor& target = pair.target.value;
    facts.insert(facts.end(), {pair.stored, target.bytes(), static_cast<std::uint64_t>(target.dtype())});
  }
  read_together(facts, world, [&](comm::HostGroup& group) {
    Tensor here;  // of the pair before `p`
    const auto finish = [&](std::size_t p) {
      if (p > 0) kernels::transfer(here, pairs[p - 1].target.value, backend);
    };
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const int reader = static_cast<int>(p % static_cast<std::size_t>(group.size()));
      comm::run_on_all(group, [&] {
        finish(p);
        here = kernels::empty_on_cpu(pairs[p].target.value);
        if (group.rank() == reader) read_as(source, stored[pairs[p].stored], pairs[p].stored, here);
      });
      group.broadcast(here.raw(), here.bytes(), reader);
    }
    comm::run_on_all(group, [&] { finish(pairs.size()); });
  });
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
  const std::string prefix = strip_shared_prefix(stored, source->group(), model);
  Match result;
  comm::run_on_all(world, [&] {
    if (swapped_in(model))
      throw UsageError("{}: EMA weights are swapped in; end the evaluation before a load", path);
    static const ForeignWeights as_they_are;
    result = plan(*source, model.foreign ? *model.foreign : as_they_are, stored,
                  demand_of(model, source->group(), stored, options.params_only), prefix, options, report);
    check_some_match(path, model, result, report);
  });
  read_pairs(*source, stored, result.pairs, model.backend, world);
  comm::run_on_all(world, [&] {
    source.reset();  // the caller may replace the file after this
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
