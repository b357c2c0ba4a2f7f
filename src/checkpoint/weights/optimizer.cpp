// The state of AdamW in a file of torch.save, under the names of a model's parameters.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/elements.h"
#include "checkpoint/weights/foreign.h"
#include "checkpoint/weights/pytorch.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"

namespace lockstep::checkpoint {
namespace optimizer {

using nlohmann::json;

constexpr std::array<const char*, 2> moments{"exp_avg", "exp_avg_sq"};

/// A parameter in the file.
struct Stored {
  std::string key, name;               ///< name: empty if the file has numbers only
  std::vector<std::uint64_t> tensors;  ///< of the moments; none if no step changed the parameter
  std::int64_t steps = 0;
};
using Groups = std::vector<std::vector<Stored>>;

/// A parameter's "step": a tensor or, before PyTorch 1.12, an integer.
std::int64_t steps_in(const PytorchFile& file, const json& value) {
  constexpr double max_steps = 1e15;
  double steps = 0;
  if (!value.is_number_unsigned()) {
    value.get_to(steps);
  } else if (const StoredTensor& tensor = file.tensors()[value.get<std::uint64_t>()];
             tensor.dtype && is_floating(*tensor.dtype) && tensor.shape.empty()) {
    read_as(file, tensor, value.get<std::uint64_t>(), Tensor::view(&steps, {}, DType::float64));
  }
  if (!(steps >= 1 && steps <= max_steps && steps == std::floor(steps)))
    throw DataError("{}: a step of its optimizer is not a number of updates", file.path());
  return static_cast<std::int64_t>(steps);
}

/// Throws json::exception if the file has something else.
Groups groups_in(const PytorchFile& file, std::vector<std::string>& notes) {
  Groups groups;
  bool amsgrad = false;
  const json& states = file.optimizer().at("state");
  for (const json& group : file.optimizer().at("param_groups")) {
    const json names = group.value("param_names", json());
    groups.emplace_back();
    for (const json& param : group.at("params")) {
      const json name = names.is_array() ? names.at(groups.back().size()) : param;
      Stored& stored = groups.back().emplace_back();
      stored.key = param.is_string() ? param.get<std::string>() : param.dump();
      if (name.is_string()) stored.name = strip_wrapper_prefix(name.get_ref<const std::string&>());
      const auto state = states.find(stored.key);
      if (state == states.end() || state->empty()) continue;
      std::set<std::string> slots;
      for (const auto& [slot, value] : state->items()) slots.insert(slot);
      amsgrad |= slots.erase("max_exp_avg_sq") > 0;
      if (slots != std::set<std::string>{moments[0], moments[1], "step"})
        throw DataError("{}: holds {}, but the state of AdamW and Adam is exp_avg, exp_avg_sq and step",
                        file.path(), fmt::join(slots, ", "));
      for (const char* const slot : moments)
        stored.tensors.push_back(state->at(slot).get_ref<const json::number_unsigned_t&>());
      stored.steps = steps_in(file, state->at("step"));
    }
  }
  if (amsgrad)
    notes.push_back(fmt::format("{}: left out: max_exp_avg_sq, as AdamW is without amsgrad", file.path()));
  return groups;
}

/// The parameter's shape in a file with its matrices as [in, out], by `by`, or in the model's.
std::vector<std::int64_t> shape_in_file(const Param& param, const ForeignWeights* by) {
  const auto extents = param.value.shape().extents();
  std::vector<std::int64_t> shape(extents.begin(), extents.end());
  if (by && is_matrix(*by, param.name)) std::ranges::reverse(shape);
  return shape;
}

/// Names the file's parameters in the model's order, which each group keeps: all in one group, or matrices
/// and vectors, body and head ... DataError unless one group alone has the shape of a parameter next.
void name_by_order(Groups& groups, std::span<Param* const> params, const ForeignWeights* by,
                   const PytorchFile& file) {
  std::vector<std::span<Stored>> left(groups.begin(), groups.end());
  for (const Param* const param : params) {
    const std::vector<std::int64_t> here = shape_in_file(*param, by);
    std::vector<std::span<Stored>*> fitting;
    std::vector<std::string> next;
    for (std::span<Stored>& group : left) {
      if (group.empty()) continue;
      const std::vector<std::uint64_t>& tensors = group.front().tensors;
      const std::vector<std::int64_t> there = tensors.empty() ? here : file.tensors()[tensors[0]].shape;
      next.push_back(fmt::format("{} [{}]", group.front().key, fmt::join(there, ", ")));
      if (there == here) fitting.push_back(&group);
    }
    if (fitting.size() != 1)
      throw DataError(
          "{}: numbers its parameters, and does not have the model's order in each group: {} is [{}] in the "
          "model, next in the groups: {}. Give names: the optimizer by AdamW(model.named_parameters()), or "
          "the file by param_names, a list in each of its param_groups",
          file.path(), param->name, fmt::join(here, ", "), fmt::join(next, ", "));
    fitting[0]->front().name = param->name;
    *fitting[0] = fitting[0]->subspan(1);
  }
}

}  // namespace optimizer

void add_optimizer(Weights& weights, const std::string& path, const ModelState& model) {
  using namespace optimizer;
  check_pytorch(path);
  const PytorchFile file(path, {}, true);
  const ForeignWeights* const by = weights.provenance.contains(weights_layout_key) ? model.foreign : nullptr;
  Groups groups;
  try {
    groups = groups_in(file, weights.notes);
  } catch (const json::exception&) {
    throw DataError("{}: its optimizer is not a state_dict() of PyTorch", path);
  }
  std::vector<Stored*> all;
  for (std::vector<Stored>& group : groups)
    for (Stored& stored : group) all.push_back(&stored);
  const bool named = std::ranges::none_of(all, &std::string::empty, &Stored::name);
  if (!named) {
    std::vector<Param*> params = model.params;
    if (params.size() != all.size()) std::erase_if(params, [](Param* param) { return !param->trainable; });
    if (params.size() != all.size())
      throw DataError("{}: holds the state of {}, but the model has {}", path,
                      pluralized(all.size(), "parameter"), params.size());
    name_by_order(groups, params, by, file);
  }
  std::unordered_map<std::string, const Stored*> by_name;
  for (const Stored* const stored : all) by_name.emplace(stored->name, stored);

  std::int64_t steps = 0;
  std::vector<std::string> unused;
  std::vector<Section> sections{{"optimizer", {}, {}, {}}, {"optimizer/step", {}, {}, {}}};
  for (const char* const slot : moments) sections.push_back({fmt::format("optimizer/{}", slot), {}, {}, {}});
  for (const Param* const param : model.params) {
    const auto found = by_name.extract(param->name);
    if (!param->trainable) continue;
    if (found.empty()) throw DataError("{}: has no state of {}, which the model has", path, param->name);
    const Stored& stored = *found.mapped();
    const Tensor updates = Tensor::zeros({}, DType::int64);
    *updates.data<std::int64_t>() = stored.steps;
    steps = std::max(steps, stored.steps);
    sections[1].tensors.push_back({param->name, updates});
    if (stored.tensors.empty()) unused.push_back(param->name);
    for (std::size_t m = 0; m < moments.size(); ++m) {
      const Tensor value = Tensor::zeros(param->value.shape());
      sections[2 + m].tensors.push_back({param->name, value});
      if (stored.tensors.empty()) continue;
      StoredTensor tensor = file.tensors()[stored.tensors[m]];
      const std::vector<std::int64_t> shape = shape_in_file(*param, by);
      if (tensor.shape != shape || !tensor.dtype || !is_floating(*tensor.dtype))
        throw DataError("{}: {} of {} is {} [{}], not floats [{}]", path, moments[m], param->name,
                        tensor.type_name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
      tensor.transposed = by && is_matrix(*by, param->name);
      read_as(file, tensor, stored.tensors[m], value);
    }
  }
  if (!by_name.empty())
    throw DataError("{}: has state of {}, which the model does not have", path,
                    quote(by_name.begin()->first));
  if (steps == 0) throw DataError("{}: holds no state: was it saved before the first step?", path);
  if (!unused.empty())
    weights.notes.push_back(fmt::format("{}: no step changed {}: from zero", path, list_of(unused)));
  weights.notes.push_back(fmt::format("{}: the state of AdamW after step {}, by the {} of {}", path, steps,
                                      named ? "names" : "order", pluralized(all.size(), "parameter")));
  for (const Section& section : sections)
    if (const std::string names = not_finite_in(section.tensors); !names.empty())
      throw DataError("{}: {} has numbers that are not finite: {}", path, section.path, names);
  sections[0].attributes = {{"algorithm", std::string("adamw"), {}}, {"step", steps, {}}};
  weights.optimizer = std::move(sections);
  weights.provenance["converted_optimizer"] = path;
  if (weights.position.step == 0) weights.position.step = steps;
}

}  // namespace lockstep::checkpoint
