// A model that a test makes several times, of any of the built-in types.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/models/gpt.h"
#include "lockstep/models/mlp.h"
#include "lockstep/models/registry.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/series.h"
#include "lockstep/models/unet.h"
#include "lockstep/models/vit.h"

namespace lockstep::test {

struct ModelMaker {
  template <class M>
  static ModelMaker of(std::string name, typename M::Options options) {
    return {std::move(name), [options](std::uint64_t seed) -> std::unique_ptr<models::Model> {
              return std::make_unique<M>(options, seed);
            }};
  }

  /// Of a configuration, by these keys.
  static ModelMaker of_keys(const std::string& name, std::vector<std::pair<std::string, std::string>> keys) {
    return {name, [name, keys](std::uint64_t seed) {
              models::ModelConfig config = models::built_in_models().configure(name);
              for (const auto& [key, text] : keys) {
                const auto& options = config.type->options;
                std::ranges::find(options, key, &Option<models::ModelConfig>::name)->set(config, text);
              }
              return models::make_model(config, seed);
            }};
  }

  std::string name;  ///< for the texts of a test
  std::function<std::unique_ptr<models::Model>(std::uint64_t seed)> make;
};

}  // namespace lockstep::test
