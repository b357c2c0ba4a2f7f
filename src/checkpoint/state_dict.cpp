// The state of models, optimizers, EMA weights and communication hooks, as sections of a checkpoint.
#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/communicator.h"
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
    state_dict.swapped_in = state_dict.swapped_in || param->swapped_in;
    section.tensors.push_back({param->name, param->value});
  }
  for (const Buffer* buffer : model.buffers) section.tensors.push_back({buffer->name, buffer->value});
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

void add(StateDict& state_dict, data::Arrays& arrays) {
  for (const data::Field& field : arrays.fields()) {
    const data::Normalization* const by = arrays.normalization(field.name);
    if (!by) continue;
    state_dict.sections.push_back(
        normalization_section(field.name, *by, [&arrays, name = field.name](data::Normalization found) {
          arrays.normalize(name, std::move(found));
        }));
  }
}

namespace {

constexpr std::string_view hook_prefix = "hook/";

std::string path_of(const ddp::HookState& state) { return fmt::format("{}{}", hook_prefix, state.name); }
std::string path_of(const ddp::HookState& state, int rank) {
  return fmt::format("{}.{}", path_of(state), rank);
}

Section section_of(std::string path, const ddp::HookState& state) {
  Section section{std::move(path), {}, {}, {}};
  for (const auto& [name, tensor] : state.entries) section.tensors.push_back({name, tensor});
  return section;
}

/// One section for each of `ranks` ranks, of the state's shapes, with new memory.
std::vector<Section> sections_by_rank(const ddp::HookState& state, int ranks) {
  std::vector<Section> sections;
  for (int rank = 0; rank < ranks; ++rank) {
    Section& section = sections.emplace_back(section_of(path_of(state, rank), state));
    for (NamedTensor& tensor : section.tensors)
      tensor.value = Tensor::zeros(tensor.value.shape(), tensor.value.dtype());
  }
  return sections;
}

/// The values of all ranks, on every rank.
std::vector<Section> gathered(const ddp::HookState& state, kernels::Backend* backend,
                              comm::HostGroup& world) {
  std::vector<Section> sections;
  std::vector<Tensor> own;
  std::vector<std::byte> all;
  comm::run_on_all(world, [&] {
    sections = sections_by_rank(state, world.size());
    std::size_t largest = 0;
    for (const auto& [name, tensor] : state.entries) {
      own.push_back(kernels::on_cpu(tensor, backend));
      largest = std::max(largest, tensor.bytes());
    }
    all.resize(largest * static_cast<std::size_t>(world.size()));
  });
  for (std::size_t e = 0; e < own.size(); ++e) {
    const Tensor& mine = own[e];
    const std::vector<std::size_t> bytes_of_rank(sections.size(), mine.bytes());
    world.all_gather_unequal(mine.raw(), bytes_of_rank, all.data());
    for (std::size_t rank = 0; rank < sections.size(); ++rank)
      std::copy_n(all.data() + rank * mine.bytes(), mine.bytes(),
                  static_cast<std::byte*>(sections[rank].tensors[e].value.raw()));
  }
  return sections;
}

/// Gives this rank an equal share of the sum over all parts, taken in float64.
void share(const std::vector<Section>& parts, const ddp::HookState& state, kernels::Backend* backend,
           int ranks) {
  for (std::size_t e = 0; e < state.entries.size(); ++e) {
    const Tensor mine = kernels::empty_on_cpu(state.entries[e].tensor);
    for (std::int64_t i = 0; i < mine.numel(); ++i) {
      double sum = 0;
      for (const Section& part : parts) sum += part.tensors[e].value.data<float>()[i];
      mine.data<float>()[i] = static_cast<float>(sum / ranks);
    }
    kernels::transfer(mine, state.entries[e].tensor, backend);
  }
}

void load_by_rank(const ddp::HookState& state, kernels::Backend* backend, const FileIndex& file,
                  const comm::HostGroup& world, LoadPlan& plan) {
  std::vector<Section>& sections = plan.state_dict.sections;
  const int ranks = world.size();
  int writers = 0;
  while (file.group(path_of(state, writers))) ++writers;
  if (writers == ranks || writers == 0) {
    sections.push_back(section_of(path_of(state, world.rank()), state));
    for (int rank = 0; rank < writers; ++rank) {
      if (rank != world.rank()) plan.of_other_ranks.push_back(path_of(state, rank));
    }
    return;
  }
  std::vector<Section> parts = sections_by_rank(state, writers);
  plan.warnings.push_back(
      fmt::format("{} holds /{} of {} ranks, this run has {}: their sum is shared equally", file.path,
                  path_of(state), writers, ranks));
  parts.back().loaded = [parts, state, backend, ranks] { share(parts, state, backend, ranks); };
  std::ranges::move(parts, std::back_inserter(sections));
}

}  // namespace

std::vector<Section> hook_sections(ddp::Hook& hook, comm::HostGroup& world) {
  std::vector<Section> sections;
  for (const ddp::HookState& state : hook.state()) {
    if (state.entries.empty()) continue;
    if (!state.by_rank) {
      sections.push_back(section_of(path_of(state), state));
    } else {
      std::ranges::move(gathered(state, hook.backend(), world), std::back_inserter(sections));
    }
  }
  return sections;
}

void plan_hook_state(ddp::Hook& hook, const FileIndex& file, const comm::HostGroup& world, LoadPlan& plan) {
  const bool any = std::ranges::any_of(
      file.groups, [](const GroupEntry& entry) { return entry.path.starts_with(hook_prefix); });
  if (!any) return;
  for (const ddp::HookState& state : hook.state_to_load()) {
    if (state.entries.empty()) continue;
    if (state.by_rank) {
      load_by_rank(state, hook.backend(), file, world, plan);
    } else {
      plan.state_dict.sections.push_back(section_of(path_of(state), state));
    }
  }
}

void add(StateDict& state_dict, ddp::Hook& hook) {
  set_backend(state_dict, hook.backend());
  state_dict.hooks.push_back(&hook);
}

}  // namespace lockstep::checkpoint
