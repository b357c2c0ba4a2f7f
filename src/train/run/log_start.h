// The log of a run before its first step.
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

/// Limits of reproducibility due to the sums of `transport`.
std::vector<std::string> notes_on_sums(const Config& config, comm::GradientTransport& transport,
                                       const Device& device);

/// "model.name = mlp, task.name = regression": built-in things that the program replaces; `format`: of the
/// data. Empty: none.
std::string replaced_names(const Config& config, const std::string& format);

/// Ranks, model, data, shards, buckets, memory, and the limits of reproducibility. Collective; `ema` may be
/// null.
void log_start(Session& session, const Config& config, models::Model& model, const DataSets& data,
               const ddp::DataParallel& replicas, const optim::Optimizer& optimizer, const optim::Ema* ema);

}  // namespace lockstep::train
