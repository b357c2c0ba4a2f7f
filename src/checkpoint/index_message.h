// Private to the room: an index as a message, so that one rank reads it for all.
#pragma once

#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Rank 0's index, on every rank. Collective.
void broadcast(FileIndex& index, comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
