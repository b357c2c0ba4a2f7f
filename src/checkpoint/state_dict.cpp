// The state of models, optimizers, EMA weights and communication hooks, as sections of a checkpoint.
#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "lockstep/data/arrays.h"
#include "lockstep/ddp/hook.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::checkpoint {

namespace {

void set_backend(StateDict& state_dict, kernels::Backend* backend) {
  if (!backend || backend->device() == Device::cpu()) return;
  if (state_dict.backend && state_dict.backend != backend)
    throw UsageError("one checkpoint cannot hold tensors on {} and tensors of another backend on {}",
                     to_string(state_dict.backend->device()), to_string(backend->device()));
  state_dict.backend = backend;
}

}  // namespace

void add(StateDict& state_dict, const ModelState& model) {
  set_backend(state_dict, model.backend);
  Section section{"model", {}, {}, {}};
  for (const Param* param : model.params) {
    param->wait_ready();
    section.tensors.push_back({param->name, param->value});
  }
  for (const Buffer* buffer : model.buffers) section.tensors.push_back({buffer->name, buffer->value});
  state_dict.swapped_in |= swapped_in(model);
  state_dict.sections.push_back(std::move(section));
}

void add(StateDict& state_dict, optim::Optimizer& optimizer) {
  set_backend(state_dict, &optimizer.backend());
  state_dict.run = optimizer.run();
  Section section{"optimizer", {}, {}, {}};
  section.attributes.push_back({"algorithm", std::string(optimizer.algorithm()), {}});
  section.attributes.push_back({"step", optimizer.steps(), [&optimizer](const AttributeValue& value) {
                                  optimizer.set_steps(std::get<std::int64_t>(value));
                                }});
  state_dict.sections.push_back(std::move(section));
  for (const optim::Slot& slot : optimizer.held_slots()) {
    Section entries{"optimizer/" + slot.name, {}, {}, {}};
    for (const optim::Slot::Entry& entry : slot.entries)
      entries.tensors.push_back({.name = entry.name, .value = entry.tensor, .part = entry.part});
    state_dict.sections.push_back(std::move(entries));
  }
}

void add(StateDict& state_dict, optim::Ema& ema) {
  set_backend(state_dict, &ema.backend());
  for (const optim::EmaProfile& profile : ema.profiles()) {
    Section section{"ema/" + profile.name(), {}, {}, {}};
    section.attributes.push_back({profile.is_power() ? "sigma_rel" : "rate", profile.parameter(), {}});
    section.attributes.push_back({"updates", ema.updates(), [&ema](const AttributeValue& value) {
                                    ema.set_updates(std::get<std::int64_t>(value));
                                  }});
    state_dict.sections.push_back(std::move(section));
  }
  for (const optim::EmaTensor& shadow : ema.held_tensors()) {
    for (Section& section : state_dict.sections) {
      if (section.path == "ema/" + shadow.rate)
        section.tensors.push_back({shadow.name, shadow.tensor, shadow.averaged, shadow.part});
    }
  }
}

Section normalization_section(std::string_view field, const data::Normalization& now,
                              std::function<void(data::Normalization)> use) {
  const auto tensor_of = [](const std::vector<double>& values) {
    Tensor tensor = Tensor::empty({std::ssize(values)}, DType::float64);
    std::ranges::copy(values, tensor.data<double>());
    return tensor;
  };
  const Tensor mean = tensor_of(now.mean), deviation = tensor_of(now.deviation);
  return {.path = fmt::format("data/{}", field),
          .tensors = {{"mean", mean}, {"deviation", deviation}},
          .attributes = {},
          .loaded = [mean, deviation, use = std::move(use)] {
            const auto values_of = [](const Tensor& tensor) {
              return std::vector<double>(tensor.data<double>(), tensor.data<double>() + tensor.numel());
            };
            use({.mean = values_of(mean), .deviation = values_of(deviation)});
          }};
}

void add(StateDict& state_dict, data::Dataset& dataset) {
  for (const data::Field& field : dataset.fields())
    if (const auto by = dataset.meaning(field.name).by)
      state_dict.sections.push_back(
          normalization_section(field.name, *by, [&dataset, name = field.name](data::Normalization found) {
            dataset.normalize(name, std::move(found));
          }));
}

void add(StateDict& state_dict, ddp::Hook& hook) {
  set_backend(state_dict, hook.backend());
  for (const ddp::HookState& state : hook.state()) {
    Section section{.path = "hook/" + state.name, .tensors = {}, .attributes = {}};
    for (const auto& [name, tensor] : state.entries) section.tensors.push_back({name, tensor});
    state_dict.sections.push_back(std::move(section));
  }
}

}  // namespace lockstep::checkpoint
