// Private to the room: the device on which what a checkpoint holds lies.
#pragma once

#include "lockstep/checkpoint/contents.h"

namespace lockstep::checkpoint {

/// Settles Contents::backend, unless this is none or the CPU's; UsageError if it is another one already.
void use(Contents& contents, kernels::Backend* backend);

}  // namespace lockstep::checkpoint
