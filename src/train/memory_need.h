// Private to the module: what a run will take at least, before anything of it is made.
#pragma once

#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"
#include "train/config.h"

namespace lockstep::train {

/// Bytes that every rank takes, activations left out: they depend on the kernels. Numbers without an end: of
/// absurd sizes, too.
struct MemoryNeed {
  double parameters = 0;  ///< and buffers
  double gradients = 0, optimizer = 0, averages = 0;
  double inputs = 0;  ///< a rank's part of a batch

  double sum() const { return parameters + gradients + optimizer + averages + inputs; }
};

/// Of a run by `ranks` ranks, from shapes alone: the model may be one of meta tensors. In the memory of the
/// machine, where all of it is if `device` is the CPU.
MemoryNeed memory_need(const Config& config, const ModelState& model, const data::Dataset& data, int ranks,
                       Device device);

/// UsageError on every rank if the ranks of a node need more than the node has left, with both figures.
/// Collective.
void check_memory(const MemoryNeed& need, comm::HostGroup& world);

}  // namespace lockstep::train
