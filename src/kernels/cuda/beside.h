// Beside the operations of a GPU: batches on their way to it, and how long it took.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/memory.h"
#include "lockstep/kernels/feed.h"
#include "lockstep/kernels/timer.h"

namespace lockstep::kernels {

/// Copies on a separate stream. The pool, whose stream computes, must outlive it.
std::unique_ptr<Feed> make_stream_feed(int device, StreamPool& pool);
std::unique_ptr<Timer> make_event_timer(int device, cudaStream_t stream);

}  // namespace lockstep::kernels
