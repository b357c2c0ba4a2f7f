#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/progress.h"
#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/ops/update.h"

namespace lockstep::optim {
namespace {

/// Empty if it belongs to an earlier value of the parameter, on another device or of another shape.
Tensor rounded_copy_of(const Param& param) {
  const Tensor& copy = param.rounded;
  const bool fits = copy && copy.device() == param.value.device() && copy.shape() == param.value.shape();
  return fits ? copy : Tensor();
}

void check_lr(double lr) {
  if (!std::isfinite(lr) || lr < 0)
    throw UsageError("learning rate {} is not a finite number of at least 0", lr);
}

}  // namespace

Optimizer::Optimizer(GradientSource& source, double lr, double weight_decay, Decay decay,
                     std::span<const ParamGroup> groups)
    : source_(source),
      source_lives_(source.lives()),
      partition_(source.partition()),
      params_(source.params().begin(), source.params().end()),
      norm_(source),
      lr_(lr),
      weight_decay_(weight_decay),
      decay_(decay) {
  check_lr(lr);
  for (const Param* const param : params_) members_.push_back({.trainable = param->trainable, .factors = {}});
  set_groups(groups);
  pending_.reserve(params_.size());
  belong_to(params_);
}

GradientSource& Optimizer::source() const {
  if (source_lives_.expired())
    throw UsageError(
        "the source of an optimizer's gradients (its DataParallel) was destroyed before the optimizer");
  return source_;
}

UpdateResult Optimizer::step(const StepOptions& options) {
  const progress::During updates(progress::Phase::optimizer);
  const double lr = options.lr.value_or(lr_), count = source().count();
  check_lr(lr);
  check_gradients();
  if (!(count > 0) || !std::isfinite(count))
    throw TrainingError(
        "step {}: nothing in the global batch counts (its count is {}), so the mean gradient is not defined: "
        "all its "
        "targets are empty, ignored or beyond their lengths; leave out such samples, or raise the global "
        "batch",
        steps_ + 1, count);
  UpdateResult result;
  if (needs_norm(options)) {
    result.gradient_norm = norm_.measure();
    result.clip_factor = clip_factor(result.gradient_norm, options.clip);
  }
  if (ema_) ema_->begin_update();
  pending_.clear();  // of a step that threw
  const auto gradient_factor = static_cast<float>(result.clip_factor / count);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!params_[i]->gradient) continue;
    const Member& member = members_[i];
    params_[i]->wait_ready();  // all ranks have read the last step's values
    pending_.push_back({.index = i,
                        .value = part(i, params_[i]->value),
                        .gradient = part(i, params_[i]->gradient),
                        .lr = lr * member.factors.lr,
                        .weight_decay = weight_decay_ * member.factors.decay,
                        .gradient_factor = gradient_factor,
                        .ema = ema_ ? ema_->targets(member.ema_leaf) : std::span<const ops::EmaTarget>(),
                        .rounded = partition_ ? Tensor() : rounded_copy_of(*params_[i])});
  }
  prepare(pending_);
  // A device applies all updates in one pass. With a Partition each is sent as soon as it is applied.
  if (!partition_) apply(pending_);
  std::size_t next = 0;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (params_[i]->gradient) {
      const std::span<const Update> one = std::span(pending_).subspan(next++, 1);
      if (partition_) apply(one);
    } else if (ema_) {
      ema_->update_leaf(members_[i].ema_leaf);
    }
    if (members_[i].trainable) source_.updated(i);
  }
  pending_.clear();
  if (ema_) ema_->finish_update();
  ++steps_;
  return result;
}

void Optimizer::check_gradients() const {
  bool any = false;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const Param& param = *params_[i];
    if (param.swapped_in)
      throw UsageError("step {}: EMA weights are swapped in; end the evaluation first", steps_ + 1);
    if (!param.gradient) continue;
    if (!members_[i].trainable)
      throw UsageError(
          "'{}' has a gradient but was frozen when the optimizer was constructed; construct a new optimizer",
          param.name);
    if (param.gradient.shape() != param.value.shape())
      throw UsageError("'{}' is {} but its gradient is {}", param.name, to_string(param.value.shape()),
                       to_string(param.gradient.shape()));
    any = true;
  }
  if (!any)
    throw UsageError("step {}: no parameter has a gradient; run a backward pass before the step", steps_ + 1);
}

void Optimizer::set_steps(std::int64_t steps) {
  if (steps < 0) throw UsageError("a number of optimizer steps of {} is invalid", steps);
  steps_ = steps;
}

void Optimizer::set_lr(double lr) {
  check_lr(lr);
  lr_ = lr;
}

void Optimizer::set_groups(std::span<const ParamGroup> groups) {
  const std::vector<ParamFactors> factors = factors_of(params_, decay_, groups);
  for (std::size_t i = 0; i < params_.size(); ++i) members_[i].factors = factors[i];
}

void Optimizer::attach(Ema& ema) {
  if (ema_ || ema.attached_to_)
    throw UsageError("an EMA can be attached to one optimizer only, and an optimizer to one EMA");
  if (ema.params_.size() != params_.size())
    throw UsageError("the EMA has {} parameters, the optimizer {}: they belong to different models",
                     ema.params_.size(), params_.size());
  if (partition_ ? ema.partition_ != *partition_ : ema.partition_.has_value())
    throw UsageError("the EMA and the optimizer have different partitions; give both that of one source");
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto leaf = std::find(ema.params_.begin(), ema.params_.end(), params_[i]);
    if (leaf == ema.params_.end()) throw UsageError("the EMA has no weights of '{}'", params_[i]->name);
    members_[i].ema_leaf = static_cast<std::size_t>(leaf - ema.params_.begin());
  }
  ema.attached_to_ = this;
  ema_ = &ema;
}

void Optimizer::detach() noexcept {
  if (ema_) std::exchange(ema_, nullptr)->attached_to_ = nullptr;
}

Tensor Optimizer::part(std::size_t index, const Tensor& whole) const {
  return partition_ ? partition_->part(index, whole) : whole;
}

std::vector<Tensor> Optimizer::make_slot(const std::vector<bool>& has) const {
  std::vector<Tensor> tensors(params_.size());
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!members_[i].trainable || (!has.empty() && !has[i])) continue;
    tensors[i] = backend().empty(part(i, params_[i]->value).shape());
    backend().fill(tensors[i], 0);
  }
  return tensors;
}

std::vector<Slot> Optimizer::held_slots() const {
  std::vector<Slot> slots;
  for (const SlotTensors& held : slot_tensors()) {
    Slot& slot = slots.emplace_back(Slot{.name = std::string(held.name), .entries = {}});
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (!held.tensors[i]) continue;
      Slot::Entry& entry =
          slot.entries.emplace_back(Slot::Entry{.name = params_[i]->name, .tensor = held.tensors[i]});
      if (partition_ && held.per_element)
        entry.part = {.partition = partition_, .param = i, .shape = params_[i]->value.shape()};
    }
  }
  return slots;
}

std::vector<Slot> Optimizer::slots() const {
  source();  // its Partition gathers them
  std::vector<Slot> slots = held_slots();
  std::vector<Slot::Entry*> missing;
  std::vector<Partition::OwnedElements> parts;
  for (Slot& slot : slots) {
    for (Slot::Entry& entry : slot.entries) {
      if (!entry.part) continue;
      missing.push_back(&entry);
      parts.push_back({.param = entry.part->param, .elements = entry.tensor, .shape = entry.part->shape});
    }
  }
  if (!partition_) return slots;
  std::vector<Tensor> wholes = partition_->gather(parts, &backend());
  for (std::size_t m = 0; m < missing.size(); ++m) {
    missing[m]->tensor = std::move(wholes[m]);
    missing[m]->part.reset();
  }
  return slots;
}

std::vector<ParamState::Entry> Optimizer::replicated() const {
  std::vector<Entry> entries;
  for (const Slot& slot : held_slots())
    for (const Slot::Entry& held : slot.entries)
      if (!held.part) entries.push_back({fmt::format("optimizer/{}/{}", slot.name, held.name), held.tensor});
  return entries;
}

StateBytes Optimizer::state_bytes() const {
  StateBytes bytes;
  for (const SlotTensors& held : slot_tensors()) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const Tensor& tensor = held.tensors[i];
      if (!tensor) continue;
      bytes.held += tensor.bytes();
      bytes.whole += held.per_element
                         ? static_cast<std::size_t>(params_[i]->value.numel()) * bytes_of(tensor.dtype())
                         : tensor.bytes();
    }
  }
  return bytes;
}

namespace {

void check_factor(double factor, std::string_view which, const ParamGroup& group) {
  if (!std::isfinite(factor) || factor < 0)
    throw UsageError("parameter group '{}': {} {} is not a finite number of at least 0", group.pattern, which,
                     factor);
}

}  // namespace

std::vector<ParamFactors> factors_of(std::span<Param* const> params, Decay decay,
                                     std::span<const ParamGroup> groups) {
  for (const ParamGroup& group : groups) {
    check_factor(group.lr_factor, "learning-rate factor", group);
    check_factor(group.decay_factor, "decay factor", group);
  }
  std::vector<bool> taken(groups.size(), false);
  std::vector<ParamFactors> factors;
  factors.reserve(params.size());
  for (const Param* const param : params) {
    const bool decays = decay == Decay::all || param->value.shape().rank() >= 2;
    ParamFactors found{.lr = 1, .decay = decays ? 1.0 : 0.0};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!matches_pattern(groups[g].pattern, param->name)) continue;
      taken[g] = true;
      found.lr = groups[g].lr_factor;
      found.decay *= groups[g].decay_factor;
      break;
    }
    factors.push_back(found);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (taken[g]) continue;
    for (const Param* const param : params)
      if (matches_pattern(groups[g].pattern, param->name))
        throw UsageError(
            "parameter group '{}' has no effect: earlier groups take every parameter it matches ('{}' is "
            "one)",
            groups[g].pattern, param->name);
    throw UsageError("parameter group '{}' matches no parameter of the model", groups[g].pattern);
  }
  return factors;
}

}  // namespace lockstep::optim
