// What a DataParallel looks at, and makes equal, before its first step.
#pragma once

#include <string>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/options.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// Everything here is equal on all ranks, so all of them throw or none.
void check_options(const Options& options, int ranks);
/// Throws UsageError on names that two have, on other types than float32, and if there is none.
std::vector<Param*> trainable_params(const std::vector<Param*>& params);
/// A parameter that two modules share may be listed twice.
ModelState without_repeats(ModelState model);
void check_device(const std::string& name, const Tensor& value, const kernels::Backend& backend);
/// Values of rank 0 on all. Collective.
void broadcast_values(comm::Communicator& communicator, const ModelState& model, kernels::Backend& backend);

}  // namespace lockstep::ddp
