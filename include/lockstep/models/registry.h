// The models that a configuration can name. The section [model] holds the options of its model and no others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/registry.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

/// A model is made from its options and the seed that decides its initial parameters.
class Registry : public lockstep::Registry<Model, std::uint64_t> {
 public:
  /// As lockstep::Registry::add. A constant M::task names the task of a configuration that names none.
  template <class M>
  Registry& add(std::string name) {
    if constexpr (requires { M::task; }) tasks_[name] = M::task;
    lockstep::Registry<Model, std::uint64_t>::add<M>(std::move(name));
    return *this;
  }
  /// Empty: the configuration must name one.
  std::string task_of(const std::string& model) const {
    const auto task = tasks_.find(model);
    return task == tasks_.end() ? "" : task->second;
  }

 private:
  std::map<std::string, std::string> tasks_;  // by model
};

using ModelType = Registry::Type;
/// The section [model].
using ModelConfig = Registry::Choice;

/// Adds mlp, resnet, gpt and unet.
void add_built_in(Registry& registry);
/// A registry of these alone.
const Registry& built_in_models();

/// `seed` decides the initial parameters. UsageError naming key and value if an option is missing, or if
/// options do not fit each other.
std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed);

}  // namespace lockstep::models
