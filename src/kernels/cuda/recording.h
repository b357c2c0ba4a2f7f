// Recordings as CUDA graphs.
#pragma once

#include <memory>

#include "kernels/cuda/memory.h"
#include "lockstep/kernels/recording.h"

namespace lockstep::kernels {

/// Captures the pool's stream, by the calling thread. `recording` is true meanwhile. Both must outlive it.
std::unique_ptr<Recorder> make_stream_recorder(int device, StreamPool& pool, bool& recording);

}  // namespace lockstep::kernels
