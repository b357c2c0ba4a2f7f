// The error for trainable parameters without a gradient.
#pragma once

#include <span>
#include <vector>

#include "ddp/usage.h"
#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep::ddp {

/// Collective: throws the same UsageError on every rank, naming the parameters `missed` (indices into
/// params), and of each the shards and ranks that missed it.
[[noreturn]] void throw_unused(comm::Communicator& communicator, const comm::ShardMap& map,
                               std::span<Param* const> params, const std::vector<std::size_t>& missed,
                               const Usage& usage);

}  // namespace lockstep::ddp
