// Evaluation: the mean loss and the accuracy over a dataset, every sample exactly once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/autograd/tape.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"

namespace lockstep::train {

struct Evaluation {
  double loss = 0;                 ///< mean over samples (or tokens)
  std::optional<double> accuracy;  ///< classifiers only
  std::int64_t samples = 0;
};

/// What happens between two batches of a long evaluation.
struct EvaluationWatch {
  /// The requests of this rank, as bits. Not collective.
  std::function<std::uint64_t()> requests;
  /// Acts on the requests of all ranks, when this fraction of the evaluation is done. False ends an
  /// evaluation that is not complete. Collective.
  std::function<bool(std::uint64_t of_any, double fraction)> act;
};

/// Collective; the same bits at any number of ranks. The model is in evaluation mode: no dropout, running
/// statistics. compute: Pass::compute. Null, on every rank, if the watch ended it.
Evaluation evaluate(models::Model& model, Tape& tape, const data::Dataset& dataset, comm::HostGroup& world,
                    DType compute = DType::float32);
std::optional<Evaluation> evaluate(models::Model& model, Tape& tape, const data::Dataset& dataset,
                                   comm::HostGroup& world, DType compute, const EvaluationWatch& watch);

}  // namespace lockstep::train
