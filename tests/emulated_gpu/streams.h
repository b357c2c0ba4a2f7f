// Streams of an emulated GPU: work is done in the order of its stream, on the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace lockstep::emulated_gpu {

/// At some moment before somebody has waited for it: behind what the stream was asked for before, and behind
/// the events that the stream was told to wait for; nothing else orders it.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// A call for work on a stream: now, or, where the stream is captured, at each launch of the graph, for the
/// stream that stands for this one.
void call_for(cudaStream_t stream, std::function<void(cudaStream_t)> call);

}  // namespace lockstep::emulated_gpu
