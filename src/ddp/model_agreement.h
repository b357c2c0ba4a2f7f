// Whether all ranks hold the same model, and if not, where they differ first.
#pragma once

#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

/// Collective. Compares options and the names, shapes and element types of all leaves by one hash. If they
/// differ, every rank throws the same UsageError: what differs first, what it is on rank 0, and what on
/// which other ranks.
void check_same_model(comm::Communicator& communicator, const ModelState& model, const Options& options);

/// "rank 2", "ranks 1, 3".
std::string ranks_text(std::span<const int> ranks);

}  // namespace lockstep::ddp
