// Checks between ranks: options and models before the first step; replicas, unused parameters and float16
// overflow later.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/reducer.h"
#include "ddp/step_header.h"
#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/options.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/update.h"

namespace lockstep::ddp {

/// Throws UsageError if two parameters have one name, on types other than float32, and if no parameter is
/// trainable.
std::vector<Param*> trainable_params(const std::vector<Param*>& params);
/// The model with every parameter once, as a parameter that two modules share may be listed twice.
ModelState without_repeats(ModelState model);
void check_device(const std::string& name, const Tensor& value, const kernels::Backend& backend);
/// Collective: all ranks get the values of rank 0.
void broadcast_values(comm::HostGroup& group, const ModelState& model, kernels::Backend& backend);

/// Collective. Compares options and the names, shapes and element types of all leaves by one hash. If they
/// differ, every rank throws the same UsageError with the first difference, on rank 0 and on other ranks.
void check_same_model(comm::HostGroup& group, const ModelState& model, const Options& options);

/// Values that are equal on all ranks: parameters, buffers, and the states of the parameters.
std::vector<ParamState::Entry> replicated_values(const ModelState& model);
/// Collective. Compares digests of values, which every rank lists in the same order: one of all values, and
/// one of each only if the first differs. Returns the same on every rank: the first tensors that differ and
/// the ranks in the minority ("fc.weight on rank 1 ... and 2 more"), or nothing. Values on the backend's
/// device are copied to the CPU for it.
std::string differing_values(comm::HostGroup& group, std::span<const ParamState::Entry> values,
                             kernels::Backend* backend);
/// Throws UsageError while EMA weights are swapped in. Not collective.
void check_own_weights(const ModelState& model);

/// Collective: throws the same UsageError on every rank, naming the parameters `missed` (indices into
/// params), each with the shards and ranks that missed it.
[[noreturn]] void throw_unused(comm::HostGroup& group, const comm::ShardMap& map,
                               std::span<Param* const> params, const std::vector<std::size_t>& missed,
                               const Usage& usage);

/// Throws the same TrainingError on every rank if the mean loss is not finite, unless the options allow it.
void check_loss(const StepHeader& header, std::uint64_t step, const Options& options);

/// float16 ends at 65504, which a sum over a batch may exceed: it is then infinite on every rank.
class OverflowCheck {
 public:
  /// params: of the model. partition: with a sharded optimizer, the partition of the sums.
  OverflowCheck(std::span<Param* const> params, comm::HostGroup& group, kernels::Backend& backend,
                const Partition* partition);
  /// Launches the check of a step's sums after them. Its result must be read before check().
  kernels::Transfer ask(const Reducer& reducer);
  /// Collective: if a sum is not finite, every rank throws the same TrainingError, naming the first such
  /// parameter. trainable: those of the model, in its order.
  void check(std::span<Param* const> trainable, std::uint64_t step);

 private:
  struct Range {
    std::size_t param = 0;                     // index in the partition
    std::int64_t first_block = 0, blocks = 0;  // of the elements that this rank has
  };
  comm::HostGroup& group_;
  kernels::Backend& backend_;
  const Partition* partition_;
  std::vector<Range> ranges_;                         // by trainable parameter
  Tensor squares_;                                    // float64, by block
  std::vector<double> read_;                          // squares_ on the CPU
  std::vector<ops::BlockSumsOfSquares::Part> parts_;  // of a call of ask()
  std::vector<std::int64_t> first_of_rank_;
};

}  // namespace lockstep::ddp
