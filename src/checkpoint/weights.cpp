// Weights only: from a group of a checkpoint, or from a file of others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <unordered_set>

#include "checkpoint/finite.h"
#include "checkpoint/gpt2_names.h"
#include "checkpoint/load_steps.h"
#include "checkpoint/weight_source.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/transfer.h"

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
  if (head.shape != embedding.shape || head.dtype != embedding.dtype) return false;
  std::vector<std::byte> a(source.bytes_of(tie.head)), b(a.size());
  source.read(tie.head, a);
  source.read(tie.embedding, b);
  return a == b;
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
  check_or_warn(source.path(), result, options, report.warnings);
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

}  // namespace

LoadReport load_weights(const std::string& path, const ModelState& model, comm::Communicator& communicator,
                        const std::string& group, const LoadOptions& options) {
  for (const Param* param : model.params) param->settle();
  std::unique_ptr<WeightSource> source = open_weights(path, group, communicator);
  LoadReport report;
  report.index.path = path;
  if (source->index()) report.index = *source->index();
  comm::together(communicator, [&] { report.index.position = source->position(); });
  std::vector<StoredTensor> stored = source->tensors();
  Fit result;
  comm::together(communicator, [&] {
    result = plan(*source, stored, demand_of(model, source->group(), stored), options, report);
    check_some_fit(path, model, result, report);
  });
  comm::together(communicator, [&] {
    for (const Fit::Pair& pair : result.pairs) {
      const Tensor here = kernels::cpu_room_for(pair.target.value);
      read_as(*source, stored[pair.stored], pair.stored, here);
      kernels::transfer(here, pair.target.value, model.backend);
    }
    source.reset();  // whoever has the report may replace the file
    check_finite(path, model, options, report);
  });
  return report;
}

}  // namespace lockstep::checkpoint
