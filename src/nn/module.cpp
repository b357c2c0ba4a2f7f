#include "lockstep/nn/module.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <typeinfo>

#include "base/text.h"
#include "lockstep/base/random.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::nn {
namespace {

template <class T>
void erase_pointer(std::vector<T*>& pointers, const T* gone) noexcept {
  std::erase(pointers, gone);
}

/// A UsageError with the path of its layer.
struct NamedError final : UsageError {
  using UsageError::UsageError;
};

}  // namespace

Module::Module(std::uint64_t seed) : seed_(seed) {}

Module::Module(Module& parent, std::string_view name)
    : parent_(&parent), path_(parent.full_name(name)), seed_(parent.seed_) {
  claim(path_);
  try {
    parent.children_.push_back(this);
  } catch (...) {
    release(path_);
    throw;
  }
}

Module::~Module() {
  if (!parent_) return;
  release(path_);
  erase_pointer(parent_->children_, this);
}

void Module::rethrow_named(const UsageError& error) const {
  if (path_.empty() || typeid(error) != typeid(UsageError)) throw;
  throw NamedError("{}: {}", path_, error.what());
}

std::string Module::full_name(std::string_view name) const {
  if (name.empty()) throw UsageError("a member of module '{}' has an empty name; give it one", path_);
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

Module& Module::root() noexcept {
  Module* module = this;
  while (module->parent_) module = module->parent_;
  return *module;
}

void Module::claim(const std::string& full_name) {
  if (!root().names_.insert(full_name).second)
    throw UsageError("the name '{}' is used twice in one model; rename one of the two", full_name);
}

void Module::release(const std::string& full_name) noexcept { root().names_.erase(full_name); }

ModelState Module::state() {
  ModelState state;
  collect(state);
  state.backend = root().backend_;
  state.foreign = foreign_weights();
  return state;
}

void Module::to(kernels::Backend& backend) {
  if (parent_)
    throw UsageError("module '{}' is part of a model, and cannot move to {} alone", path_,
                     to_string(backend.device()));
  const bool leaves_device = backend_ && backend.device() == Device::cpu();
  const auto moved = [&](const Tensor& value) {
    return leaves_device ? kernels::on_cpu(value, backend_) : kernels::on_device(value, backend);
  };
  const ModelState all = state();
  for (Param* const param : all.params) {
    param->wait_ready();
    if (param->value.device() != backend.device()) param->gradient = param->rounded = {};
    param->value = moved(param->value);
  }
  for (Buffer* const buffer : all.buffers) buffer->value = moved(buffer->value);
  backend_ = backend.device() == Device::cpu() ? nullptr : &backend;
}

void Module::for_each_module(const std::function<void(Module&)>& visit) {
  visit(*this);
  for (Module* const child : children_) child->for_each_module(visit);
}

void Module::collect(ModelState& state) const {
  state.params.insert(state.params.end(), params_.begin(), params_.end());
  state.buffers.insert(state.buffers.end(), buffers_.begin(), buffers_.end());
  std::ranges::copy_if(statistics_, std::back_inserter(state.statistics), &Statistic::is_used);
  state.meets_across_ranks = state.meets_across_ranks || meets_across_ranks();
  for (const Module* const child : children_) child->collect(state);
}

Parameter::Parameter(Module& owner, std::string_view local_name, Shape shape, const Init& init)
    : owner_(owner) {
  name = owner.full_name(local_name);
  if (shape.numel() == 0)
    throw UsageError("'{}' is {}: a parameter has at least one element", name, to_string(shape));
  value = Tensor::empty(shape);
  initialize(*this, init, owner.seed());
  owner.params_.reserve(owner.params_.size() + 1);
  owner.claim(name);
  owner.params_.push_back(this);
}

Parameter::~Parameter() {
  owner_.release(name);
  erase_pointer<Param>(owner_.params_, this);
}

StateBuffer::StateBuffer(Module& owner, std::string_view local_name, Tensor initial) : owner_(owner) {
  name = owner.full_name(local_name);
  value = std::move(initial);
  owner.buffers_.reserve(owner.buffers_.size() + 1);
  owner.claim(name);
  owner.buffers_.push_back(this);
}

StateBuffer::~StateBuffer() {
  owner_.release(name);
  erase_pointer<Buffer>(owner_.buffers_, this);
}

Moments::Moments(Module& owner, std::string_view local_name, std::int64_t elements)
    : owner_(owner), name_(owner.full_name(local_name)), elements_(elements) {
  owner.statistics_.reserve(owner.statistics_.size() + 1);
  owner.claim(name_);
  owner.statistics_.push_back(this);
}

Moments::~Moments() {
  owner_.release(name_);
  erase_pointer<Statistic>(owner_.statistics_, this);
}

void freeze(const ModelState& state, std::span<const std::string> patterns) {
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (Param* const param : state.params) {
      if (!matches_pattern(pattern, param->name)) continue;
      param->trainable = false;
      matched = true;
    }
    if (matched) continue;
    std::vector<std::string> names;
    for (const Param* const param : state.params) names.push_back(param->name);
    const std::string nearest = nearest_name(pattern, names);
    throw UsageError("frozen pattern '{}' matches no parameter{}", pattern,
                     nearest.empty() ? std::string() : "; did you mean '" + nearest + "'?");
  }
}

std::int64_t count_parameters(const ModelState& state, bool trainable_only) {
  std::int64_t count = 0;
  for (const Param* const param : state.params) {
    if (param->trainable || !trainable_only) count += param->value.numel();
  }
  return count;
}

namespace {
thread_local int without_initial_values = 0;  // how many WithoutInitialValues live
}  // namespace

WithoutInitialValues::WithoutInitialValues() { ++without_initial_values; }
WithoutInitialValues::~WithoutInitialValues() { --without_initial_values; }

void initialize(Param& param, const Init& init, std::uint64_t seed) {
  float* const values = param.value.data<float>();
  if (!values || without_initial_values > 0) return;  // no values: a meta tensor
  const std::int64_t count = param.value.numel();
  if (init.kind == Init::Kind::constant) {
    std::fill_n(values, count, init.scale);
    return;
  }
  const Random random({.seed = seed, .purpose = purpose_of("init:" + param.name)});
  if (init.kind == Init::Kind::normal) {
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = init.scale * random.normal(static_cast<std::uint64_t>(i));
    return;
  }
  for (std::int64_t i = 0; i < count; i += 4) {  // four elements share a block: random.uniform(i ...)
    const auto words = random.block(static_cast<std::uint64_t>(i) / 4);
    for (std::int64_t j = i; j < std::min(count, i + 4); ++j)
      values[j] = init.scale * (2 * Random::to_uniform(words[static_cast<std::size_t>(j - i)]) - 1);
  }
}

Init fan_in_uniform(std::int64_t fan_in) {
  return Init::uniform(fan_in > 0 ? 1 / std::sqrt(static_cast<float>(fan_in)) : 0);
}

}  // namespace lockstep::nn
