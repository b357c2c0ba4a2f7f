// Weights only: from a group of a checkpoint, or from a file of others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/elements.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/weights/gpt2.h"
#include "checkpoint/weights/source.h"
#include "kernels/transfer.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// What of the model is looked for in the group asked for, and which buffers in "model".
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

bool holds_the_same(const WeightSource& source, const Gpt2Adoption::Tie& tie) {
  const StoredTensor &head = source.tensors()[tie.head], &embedding = source.tensors()[tie.embedding];
  if (head.shape != embedding.shape || head.type_name != embedding.type_name) return false;
  std::vector<std::byte> a(source.bytes_of(tie.head)), b(a.size());
  source.read(tie.head, a);
  source.read(tie.embedding, b);
  return a == b;
}

/// The larger ResNets differ from those here in every block: a list of all their names would say no more.
void check_no_bottlenecks(const std::string& path, std::span<const StoredTensor> stored,
                          std::span<const NamedTensor> wanted, const Fit& fit) {
  constexpr std::string_view third = "layer1.0.conv3.weight", second = "layer1.0.conv2.weight";
  const auto is = [](std::string_view name) {
    return [name](const auto& tensor) { return strip_wrapper_prefix(tensor.name) == name; };
  };
  if (fit.problems.empty() || std::ranges::none_of(stored, is(third)) ||
      std::ranges::none_of(wanted, is(second)) || std::ranges::any_of(wanted, is(third)))
    return;
  throw DataError(
      "{}: bottleneck blocks (resnet50/101/152) are not known, and it holds them ({}); take the "
      "weights of a resnet18 or resnet34",
      path, third);
}

bool holds(const WeightSource& source, std::size_t tensor, const Tensor& values) {
  const std::vector<std::int64_t>& shape = source.tensors()[tensor].shape;
  if (!std::ranges::equal(shape, values.shape().extents())) return false;
  std::vector<std::byte> elements(source.bytes_of(tensor));
  if (elements.size() != values.bytes()) return false;
  source.read(tensor, elements);
  return std::memcmp(elements.data(), values.raw(), elements.size()) == 0;
}

/// What all masks of one name have for their type, if each block has one, and they are what GPT-2's are.
template <class Make>
std::optional<DType> mask_type(const WeightSource& source, const std::vector<StoredTensor>& stored,
                               const Gpt2Adoption& gpt2, std::string_view end, std::size_t blocks,
                               const Make& make) {
  std::optional<Tensor> expected;
  std::size_t found = 0;
  for (const std::size_t i : gpt2.masks) {
    if (!stored[i].name.ends_with(end)) continue;
    if (!expected) {
      const std::optional<DType> dtype = gpt2_mask_dtype(stored[i].type_name);
      if (!dtype) return std::nullopt;
      expected = make(*dtype);
    }
    if (stored[i].dtype != expected->dtype() || !holds(source, i, *expected)) return std::nullopt;
    ++found;
  }
  return found > 0 && found == blocks ? std::optional(expected->dtype()) : std::nullopt;
}

/// What is to be remembered of the file's layout, for the way back.
std::string layout_of(const WeightSource& source, const std::vector<StoredTensor>& stored,
                      const Gpt2Adoption& gpt2) {
  if (const FileIndex* const index = source.index(); index && !gpt2.layout) {
    const auto recorded = index->provenance.find(weights_layout_key);
    return recorded == index->provenance.end() ? "" : recorded->second;
  }
  if (!gpt2.layout) return {};
  Gpt2Layout layout = *gpt2.layout;
  std::int64_t positions = 0;
  std::size_t blocks = 0;
  for (const StoredTensor& tensor : stored) {
    if (tensor.group != source.group()) continue;
    if (tensor.name.ends_with("wpe.weight") && !tensor.shape.empty()) positions = tensor.shape[0];
    blocks += tensor.name.ends_with("attn.c_attn.weight");
  }
  layout.mask = mask_type(source, stored, gpt2, ".attn.bias", blocks,
                          [&](DType dtype) { return gpt2_mask(positions, dtype); });
  layout.masked_bias = mask_type(source, stored, gpt2, ".attn.masked_bias", blocks, gpt2_masked_bias_of);
  return to_text(layout);
}

/// Fills `report` with what is to be said; throws what is an error.
Fit plan(const WeightSource& source, std::vector<StoredTensor>& stored, const Demand& demand,
         const LoadOptions& options, LoadReport& report) {
  const Gpt2Adoption gpt2 = adopt_gpt2(stored, source.group(), demand.own);
  const std::vector<Wanted> wanted = {{source.group(), demand.own, false},
                                      {"model", demand.from_model, true}};
  Fit result = fit(stored, wanted, options.narrow ? Conversion::rounding : Conversion::lossless);
  if (gpt2.tie && !holds_the_same(source, *gpt2.tie)) {
    result.problems.push_back(
        "lm_head.weight differs from the embedding transformer.wte.weight, which is this model's head, too");
  }
  check_no_bottlenecks(source.path(), stored, demand.own, result);
  check_or_warn(source.path(), result, options, report.warnings);
  if (std::string layout = layout_of(source, stored, gpt2); !layout.empty())
    report.provenance[weights_layout_key] = std::move(layout);
  if (!gpt2.notes.empty())
    report.notes.push_back(
        fmt::format("{}: GPT-2 as Hugging Face stores it: {}", source.path(), fmt::join(gpt2.notes, "; ")));
  return result;
}

/// Partial loading forgives much, but not a file that has nothing to do with the model.
void check_some_fit(const std::string& path, const ModelState& model, const Fit& fit, LoadReport& report) {
  std::set<const void*> targets;
  for (const Fit::Pair& pair : fit.pairs) targets.insert(pair.target.value.raw());
  const auto taken = std::count_if(model.params.begin(), model.params.end(), [&](const Param* param) {
    return param->value.numel() == 0 || targets.contains(param->value.raw());
  });
  const auto all = static_cast<std::ptrdiff_t>(model.params.size());
  if (fit.pairs.empty() && all > 0)
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

LoadReport load_from(std::unique_ptr<WeightSource> source, const ModelState& model,
                     comm::HostGroup& communicator, const LoadOptions& options) {
  for (const Param* param : model.params) param->settle();
  const std::string path = source->path();
  LoadReport report;
  report.index.path = path;
  if (source->index()) report.index = *source->index();
  comm::run_on_all(communicator, [&] { report.index.position = source->position(); });
  std::vector<StoredTensor> stored = source->tensors();
  Fit result;
  comm::run_on_all(communicator, [&] {
    result = plan(*source, stored, demand_of(model, source->group(), stored), options, report);
    check_some_fit(path, model, result, report);
  });
  comm::run_on_all(communicator, [&] {
    for (const Fit::Pair& pair : result.pairs) {
      const Tensor here = kernels::cpu_room_for(pair.target.value);
      read_as(*source, stored[pair.stored], pair.stored, here);
      kernels::transfer(here, pair.target.value, model.backend);
    }
    source.reset();  // the caller may replace the file once it has the report
    check_finite(path, model, options, report);
  });
  return report;
}

}  // namespace

LoadReport load_weights(const std::string& path, const ModelState& model, comm::HostGroup& communicator,
                        const std::string& group, const LoadOptions& options) {
  return load_from(open_weights(path, group, communicator), model, communicator, options);
}

LoadReport load_weights(const FileIndex& index, const ModelState& model, comm::HostGroup& communicator,
                        const std::string& group, const LoadOptions& options) {
  std::unique_ptr<WeightSource> source;
  comm::run_on_all(communicator, [&] { source = open_weights(index, group); });
  return load_from(std::move(source), model, communicator, options);
}

}  // namespace lockstep::checkpoint
