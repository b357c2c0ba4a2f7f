// What models, optimizers and EMAs put into a checkpoint, and take back from one.
#include <string>

#include "checkpoint/use.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::checkpoint {

void use(Contents& contents, kernels::Backend* backend) {
  if (!backend || backend->device() == Device::cpu()) return;
  if (contents.backend && contents.backend != backend)
    throw UsageError("one checkpoint cannot hold what lies on {} and what another backend of {} works on",
                     to_string(contents.backend->device()), to_string(backend->device()));
  contents.backend = backend;
}

void add(Contents& contents, const ModelState& model) {
  use(contents, model.backend);
  Section section{"model", {}, {}, {}};
  for (const Param* param : model.params) {
    param->settle();
    section.tensors.push_back({param->name, param->value});
  }
  for (const Buffer* buffer : model.buffers) section.tensors.push_back({buffer->name, buffer->value});
  contents.sections.push_back(std::move(section));
}

void add(Contents& contents, optim::Optimizer& optimizer) {
  use(contents, &optimizer.backend());
  Section section{"optimizer", {}, {}, {}};
  section.attributes.push_back({"algorithm", std::string(optimizer.algorithm()), {}});
  section.attributes.push_back({"step", optimizer.steps(), [&optimizer](const AttributeValue& value) {
                                  optimizer.set_steps(std::get<std::int64_t>(value));
                                }});
  contents.sections.push_back(std::move(section));
  for (const optim::Slot& slot : optimizer.held_slots()) {
    Section entries{"optimizer/" + slot.name, {}, {}, {}};
    for (const optim::Slot::Entry& entry : slot.entries)
      entries.tensors.push_back({.name = entry.name, .value = entry.tensor, .part = entry.part});
    contents.sections.push_back(std::move(entries));
  }
}

void add(Contents& contents, optim::Ema& ema) {
  use(contents, &ema.backend());
  for (const optim::EmaProfile& profile : ema.profiles()) {
    Section section{"ema/" + profile.name(), {}, {}, {}};
    section.attributes.push_back({profile.is_power() ? "sigma_rel" : "rate", profile.parameter(), {}});
    section.attributes.push_back({"updates", ema.updates(), [&ema](const AttributeValue& value) {
                                    ema.set_updates(std::get<std::int64_t>(value));
                                  }});
    contents.sections.push_back(std::move(section));
  }
  for (const optim::EmaShadow& shadow : ema.held_shadows()) {
    for (Section& section : contents.sections) {
      if (section.path == "ema/" + shadow.rate)
        section.tensors.push_back({shadow.name, shadow.tensor, shadow.averaged, shadow.part});
    }
  }
}

}  // namespace lockstep::checkpoint
