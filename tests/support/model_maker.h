// A model that a test makes several times, of any of the built-in types.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/models/gpt.h"
#include "lockstep/models/mlp.h"
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

  std::string name;  ///< for the texts of a test
  std::function<std::unique_ptr<models::Model>(std::uint64_t seed)> make;
};

}  // namespace lockstep::test
