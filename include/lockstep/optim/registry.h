// The optimizers that a configuration names. Another one is a line of the table in registry.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/config.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// Names that `optimizer.name` may have.
std::vector<std::string> optimizer_names();

/// Fills in what depends on the algorithm and is not given (decay, momentum, nesterov).
void complete(OptimizerConfig& config);

/// What the algorithm needs said of a model before ddp::DataParallel divides it among ranks.
void prepare_model(const OptimizerConfig& config, const ModelState& model);

/// Of a complete configuration. `source` must outlive it. UsageError as the optimizers' constructors throw
/// it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, GradientSource& source);

/// Float32 elements that it keeps of a model's parameters, all ranks together.
std::int64_t elements_of_state(const OptimizerConfig& config, const ModelState& model);

}  // namespace lockstep::optim
