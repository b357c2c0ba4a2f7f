// Whether all ranks still hold the same parameters and buffers, bit for bit.
#pragma once

#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// Collective. Compares one 64-bit digest a bucket of `plan` (over the parameters whose gradients travel in
/// it), and one of what no bucket holds: frozen parameters and buffers. If some differ, every rank throws the
/// same TrainingError, naming the first tensors that differ and the ranks that hold other values than most.
/// `trainable` are the plan's gradients, in their order. Values on a device are copied to the CPU for it.
void check_replicas(comm::Communicator& communicator, kernels::Backend& backend, const BucketPlan& plan,
                    std::span<Param* const> trainable, const ModelState& model);

}  // namespace lockstep::ddp
