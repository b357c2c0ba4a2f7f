// What a run logs before its first step.
#pragma once

#include <string>
#include <vector>

#include "lockstep/ddp/data_parallel.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/session.h"
#include "train/components.h"
#include "train/config.h"

namespace lockstep::train {

/// Limits of reproducibility that come from how `transport` sums gradients.
std::vector<std::string> notes_on_sums(const Config& config, comm::GradientTransport& transport,
                                       const Device& device);

/// "model.name = mlp, task.name = regression": what a program has in place of the built-in things of these
/// names; `format`: of the data. Empty: nothing.
std::string replaced_names(const Config& config, const std::string& format);

/// Ranks, model, data, shards, buckets, memory, and the limits of reproducibility. Collective; `ema` may be
/// null.
void log_start(Session& session, const Config& config, models::Model& model, const DataSets& data,
               const ddp::DataParallel& replicas, const optim::Optimizer& optimizer, const optim::Ema* ema);

}  // namespace lockstep::train
