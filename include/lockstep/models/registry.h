// Registry: the models that a configuration can name, each with its options described. The section [model] of
// a configuration holds the options of its model and no others.
#pragma once

#include <any>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

struct ModelConfig;

/// A model that a configuration can name.
struct ModelType {
  std::string name;
  std::vector<Option<ModelConfig>> options;  ///< the keys of [model] besides `name`
  std::any defaults;                         ///< of the model's type Options
  std::function<std::unique_ptr<Model>(const std::any& options, std::uint64_t seed)> make;
};

/// The section [model]: which model, and its options.
struct ModelConfig {
  const ModelType* type = nullptr;  ///< null: none is named yet
  std::any options;                 ///< of the model's type Options

  std::string name() const { return type ? type->name : ""; }
  /// The text of an option; empty where this model has no such option.
  std::string value(std::string_view option) const;
  /// The options of a model of this class; null if this is another model.
  template <class M>
  const typename M::Options* options_of() const {
    return std::any_cast<typename M::Options>(&options);
  }
};

/// Types have stable addresses: a ModelConfig refers to that of its model.
class Registry {
 public:
  Registry() = default;
  Registry(Registry&&) = default;

  /// M: a Model with a copyable struct M::Options, whose options() describes its members, and with a
  /// constructor M(const M::Options&, std::uint64_t seed).
  template <class M>
  Registry& add(std::string name) {
    using Options = typename M::Options;
    ModelType& type = types_.emplace_back();
    type.name = std::move(name);
    type.defaults = Options{};
    type.make = [](const std::any& options, std::uint64_t seed) -> std::unique_ptr<Model> {
      return std::make_unique<M>(std::any_cast<const Options&>(options), seed);
    };
    for (Option<Options>& option : Options::options())
      type.options.push_back(option::within<ModelConfig>(
          std::move(option), [](auto& config) -> auto& { return *std::any_cast<Options>(&config.options); }));
    return *this;
  }

  const std::deque<ModelType>& types() const { return types_; }
  std::vector<std::string> names() const;
  /// This model with the defaults of its options. UsageError if there is no such model, with the nearest
  /// name.
  ModelConfig configure(const std::string& name) const;

 private:
  std::deque<ModelType> types_;
};

/// mlp, resnet and gpt.
const Registry& built_in_models();

/// `seed` decides the initial parameters. UsageError naming key and value if an option is missing, or if
/// options do not fit each other.
std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed);

}  // namespace lockstep::models
