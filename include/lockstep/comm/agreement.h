// One error for all: what fails on one rank becomes the same error on every rank.
#pragma once

#include <functional>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Runs `action` on every rank, then compares (collective). If it threw anywhere, every rank throws an Error
/// with the same text and code: those of the lowest failing rank, "rank R: " in front if only some ranks
/// failed and "; and N more ranks" behind if the texts differ. The action itself must not leave its peers
/// inside a collective; what it started must be over when it throws.
void together(Communicator& communicator, const std::function<void()>& action);

}  // namespace lockstep::comm
