// Evaluation: the mean loss and the accuracy over a dataset, every sample exactly once.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/autograd/tape.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/registry.h"

namespace lockstep::train {

struct Evaluation {
  double loss = 0;                 ///< mean over samples (or tokens)
  std::optional<double> accuracy;  ///< classifiers only
  std::int64_t samples = 0;
};

/// Collective; the same bits at any number of ranks. The model is in evaluation mode: no dropout, running
/// statistics. compute: Pass::compute.
Evaluation evaluate(models::Model& model, Tape& tape, const data::Dataset& dataset, comm::Communicator& world,
                    DType compute = DType::float32);

}  // namespace lockstep::train
