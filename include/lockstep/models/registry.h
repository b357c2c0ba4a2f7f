// The models that a configuration can name. The section [model] holds the options of its model and no others.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/registry.h"
#include "lockstep/models/model.h"

namespace lockstep::models {

/// A model is constructed from its options and the seed of its initial parameters.
using Registry = lockstep::Registry<Model, std::uint64_t>;
using ModelType = Registry::Type;
/// The section [model].
using ModelConfig = Registry::Choice;

/// Adds mlp, resnet, gpt, llama, unet, vit, encoder, rnn and cosmoflow.
void add_built_in(Registry& registry);
/// A registry that has only these.
const Registry& built_in_models();

/// `seed`: of the initial parameters. UsageError naming key and value if an option is missing, or if options
/// do not fit each other.
std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed);

}  // namespace lockstep::models
