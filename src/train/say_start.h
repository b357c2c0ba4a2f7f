// Private to the module: what a run says of itself before its first step.
#pragma once

#include <string>
#include <vector>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/models/registry.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/workload.h"

namespace lockstep::train {

/// What the way in which gradients are summed costs in reproducibility. `transport`: what sums them.
std::vector<std::string> notes_on_sums(const Config& config, comm::GradientTransport& transport,
                                       const Device& device);

/// Ranks, model, data, shards, buckets and memory, and what the configuration costs in reproducibility.
/// Collective; `ema` may be none.
void say_start(Session& session, const Config& config, models::Model& model, const DataSets& data,
               const ddp::DataParallel& replicas, const optim::Optimizer& optimizer, const optim::Ema* ema);

}  // namespace lockstep::train
