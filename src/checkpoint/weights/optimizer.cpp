// The state of AdamW in a file of torch.save, under the names of a model's parameters.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "checkpoint/elements.h"
#include "checkpoint/run_files.h"
#include "checkpoint/weights/pytorch.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"

namespace lockstep::checkpoint {
namespace optimizer {

using nlohmann::json;

constexpr std::array slots{"exp_avg", "exp_avg_sq", "step"};

/// A parameter in the file, by its number or name; `name` is empty if the file does not say it.
struct Stored {
  std::string key, name;
  std::vector<std::size_t> moments;  ///< tensors of the file; none if no step changed the parameter
  double steps = 0;
};
using Groups = std::vector<std::vector<Stored>>;

/// Every optimizer.state_dict() in the contents of a file.
void find(const json& contents, std::vector<const json*>& found) {
  if (contents.is_object() && contents.contains("param_groups")) return found.push_back(&contents);
  for (const json& inner : contents)
    if (inner.is_structured()) find(inner, found);
}

/// Casts to the type of `out`. DataError unless the tensor has floats, in that shape.
void read(const PytorchFile& file, std::size_t index, const std::string& what, const Tensor& out) {
  const StoredTensor& tensor = file.tensors()[index];
  const auto shape = out.shape().extents();
  if (!std::ranges::equal(tensor.shape, shape) || !tensor.dtype || !is_floating(*tensor.dtype))
    throw DataError("{}: {} is {} [{}], not floats [{}]", file.path(), what, tensor.type_name,
                    fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  std::vector<std::byte> elements(file.bytes_of(index));
  file.read(index, elements);
  if (!cast_elements(*tensor.dtype, elements.data(), out.dtype(), static_cast<std::byte*>(out.raw()),
                     out.numel()))
    throw DataError("{}: {} has numbers out of the range of {}", file.path(), what, to_string(out.dtype()));
}

/// DataError if a group has options that Lockstep's AdamW lacks, or lacks one of Adam and AdamW.
void check_options(const json& group, const PytorchFile& file) {
  for (const char* const flag : {"amsgrad", "maximize"})
    if (const auto value = group.find(flag); value != group.end() && *value != false && !value->is_null())
      throw DataError("{}: is of an optimizer with {} = True, which Lockstep's AdamW does not do",
                      file.path(), flag);
  // All optimizers of PyTorch have the option foreach; RAdam has the same states as Adam.
  if (group.contains("foreach") && !group.contains("amsgrad"))
    throw DataError("{}: is of another optimizer (RAdam?): its param_groups lack amsgrad", file.path());
}

/// Throws json::exception if it is something else.
Groups groups_in(const json& optimizer, const PytorchFile& file) {
  constexpr double max_steps = 1e15;
  Groups groups;
  for (const json& group : optimizer.at("param_groups")) {
    const json names = group.value("param_names", json());
    groups.emplace_back();
    for (const json& param : group.at("params")) {
      const json name = names.is_array() ? names.at(groups.back().size()) : param;
      Stored& stored = groups.back().emplace_back();
      stored.key =
          param.is_string() ? param.get<std::string>() : std::to_string(param.get_ref<const std::int64_t&>());
      if (name.is_string()) stored.name = strip_wrapper_prefix(name.get_ref<const std::string&>());
      const json state = optimizer.at("state").value(stored.key, json());
      if (state.empty()) continue;
      std::vector<std::string> own;
      for (const auto& [slot, value] : state.items()) own.push_back(quote(slot));
      if (list_of(own) != R"("exp_avg", "exp_avg_sq", "step")")
        throw DataError("{}: holds {}; the state of AdamW and Adam, without amsgrad, is {}", file.path(),
                        list_of(own), fmt::join(slots, ", "));
      for (const char* const slot : {slots[0], slots[1]})
        stored.moments.push_back(state[slot].get_ref<const json::number_unsigned_t&>());
      const json& step = state["step"];
      if (!step.is_number_unsigned())
        step.get_to(stored.steps);  // before PyTorch 1.12
      else
        read(file, step.get<std::size_t>(), "a step", Tensor::view(&stored.steps, {}, DType::float64));
      if (!(stored.steps >= 1 && stored.steps <= max_steps && stored.steps == std::floor(stored.steps)))
        throw DataError("{}: {} is not a number of steps", file.path(), stored.steps);
    }
    check_options(group, file);
  }
  return groups;
}

/// Names the file's parameters in the model's order, which each group keeps: all in one group, or matrices
/// and vectors, body and head ... DataError unless one group alone has the shape of a parameter next.
void name_by_order(Groups& groups, std::span<const Param* const> params, const PytorchFile& file) {
  std::vector<std::span<Stored>> left(groups.begin(), groups.end());
  for (const Param* const param : params) {
    const auto here = param->value.shape().extents();
    std::vector<std::span<Stored>*> fitting;
    std::vector<std::string> next;
    for (std::span<Stored>& group : left) {
      if (group.empty()) continue;
      const std::vector<std::size_t>& moments = group.front().moments;
      const auto there = moments.empty() ? here : std::span(file.tensors()[moments[0]].shape);
      if (std::ranges::equal(here, there)) fitting.push_back(&group);
      next.push_back(fmt::format("{} [{}]", quote(group.front().key), fmt::join(there, ", ")));
    }
    if (fitting.size() != 1)
      throw DataError(
          "{}: numbers its parameters, so that each group must have them in the model's order: {} is [{}] in "
          "the model, next in the groups: {}; save it with AdamW(model.named_parameters()), or add names: a "
          "list param_names in each of param_groups",
          file.path(), param->name, fmt::join(here, ", "), list_of(next));
    fitting[0]->front().name = param->name;
    *fitting[0] = fitting[0]->subspan(1);
  }
}

}  // namespace optimizer

std::string add_optimizer(Weights& weights, const std::string& path, const ModelState& model) {
  using namespace optimizer;
  open_live(path);  // names a folder
  const PytorchFile file(path, {}, true);
  std::vector<const json*> found;
  find(file.contents(), found);
  if (found.size() != 1)
    throw DataError("{}: holds the state of {}, not of one; torch.save(optimizer.state_dict(), FILE)", path,
                    pluralized(found.size(), "optimizer"));
  Groups groups;
  try {
    groups = groups_in(*found[0], file);
  } catch (const json::exception&) {
    throw DataError("{}: holds no state_dict() of an optimizer of PyTorch", path);
  }
  std::vector<Stored*> stored;
  for (std::vector<Stored>& group : groups)
    for (Stored& param : group) stored.push_back(&param);
  std::vector<const Param*> params(model.params.begin(), model.params.end());
  if (params.size() != stored.size())
    std::erase_if(params, [](const Param* param) { return !param->trainable; });
  if (params.size() != stored.size())
    throw DataError("{}: holds the state of {}, but the model has {}", path,
                    pluralized(stored.size(), "parameter"), params.size());
  const bool named = std::ranges::none_of(stored, &std::string::empty, &Stored::name);
  if (!named) name_by_order(groups, params, file);

  std::vector<Section> sections{{"optimizer", {}, {}, {}}};
  for (const char* const slot : slots) sections.push_back({fmt::format("optimizer/{}", slot), {}, {}, {}});
  std::int64_t steps = 0, least = std::numeric_limits<std::int64_t>::max();
  std::vector<std::string> without;  // state
  for (const Param* const param : params) {
    const auto there = std::ranges::find(stored, param->name, &Stored::name);
    if (there == stored.end()) throw DataError("{}: has no state of {}, as the model has", path, param->name);
    if (!param->trainable) continue;
    const Tensor count = Tensor::zeros({}, DType::int64);
    *count.data<std::int64_t>() = static_cast<std::int64_t>((*there)->steps);
    steps = std::max(steps, *count.data<std::int64_t>());
    if ((*there)->moments.empty())
      without.push_back(param->name);
    else
      least = std::min(least, *count.data<std::int64_t>());
    for (std::size_t m = 0; m < 2; ++m) {
      const Tensor moment = Tensor::zeros(param->value.shape());
      if (const auto& moments = (*there)->moments; !moments.empty())
        read(file, moments[m], fmt::format("{} of {}", slots[m], param->name), moment);
      const float* const values = moment.data<float>();
      if (m == 1 && std::any_of(values, values + moment.numel(), [](float square) { return square < 0; }))
        throw DataError("{}: {} of {} has negative numbers", path, slots[m], param->name);
      sections[1 + m].tensors.push_back({param->name, moment});
    }
    sections.back().tensors.push_back({param->name, count});
  }
  for (const Section& section : sections)
    if (const std::string bad = not_finite_in(section.tensors); !bad.empty())
      throw DataError("{}: {} has numbers that are not finite: {}", path, section.path, bad);
  if (steps == 0) throw DataError("{}: holds no state: was it saved before the first step?", path);
  sections[0].attributes = {{"algorithm", std::string("adamw"), {}}, {"step", steps, {}}};
  weights.optimizer = std::move(sections);
  weights.provenance["converted_optimizer"] = path;
  if (weights.position.step == 0) weights.position.step = steps;
  return fmt::format("{}: the state of AdamW after step {}, by the {} of {}{}{}", path, steps,
                     named ? "names" : "order", pluralized(params.size(), "parameter"),
                     least == steps ? "" : fmt::format("; the fewest steps of a parameter are {}", least),
                     without.empty() ? "" : "; without state, so that they begin anew: " + list_of(without));
}

}  // namespace lockstep::checkpoint
