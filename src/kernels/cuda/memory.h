// Memory of a GPU in the order of one stream, copies by way of pinned memory, events and timers.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// Keeps blocks of the device's memory, so that a step whose shapes repeat makes no request to the driver.
/// Once its last reference is gone, a block is free for later work of the stream; earlier work may still use
/// it. Thread-safe. Blocks may outlive this, and keep the stream alive. With LOCKSTEP_SPOIL_MEMORY in the
/// environment every block is filled with NaNs when it is allocated, and when it is freed.
class StreamPool {
 public:
  explicit StreamPool(int device);
  ~StreamPool();
  StreamPool(const StreamPool&) = delete;
  StreamPool& operator=(const StreamPool&) = delete;

  cudaStream_t stream() const;
  /// At least `bytes`, 256-byte aligned, uninitialised. Throws FailureError if there is none.
  StorageRef allocate(std::size_t bytes);
  /// Bytes obtained from the driver: in use, of graphs, or kept for reuse.
  std::size_t reserved_bytes() const;

  /// Call it before the stream is captured: blocks that are allocated during the capture belong to the graph,
  /// and to the graphs of other captures, as only one runs at a time. They are free again once the results of
  /// all begin_capture() have been destroyed: the graph keeps it.
  std::shared_ptr<const void> begin_capture();
  /// Call it after the capture. Returns why blocks prevent a launch of the graph; empty if they do not.
  std::string end_capture();

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Page-locked CPU memory, from and to which the device copies at full speed while it computes. Throws
/// FailureError if there is none. 64-byte aligned, uninitialised, thread-safe.
StorageRef allocate_pinned(std::size_t bytes, int device);

class Event {
 public:
  Event() = default;  ///< none
  Event(int device, unsigned flags);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  void record(cudaStream_t stream);
  /// Also works in a captured stream: its time can be read after a launch of the graph.
  void record_timed(cudaStream_t stream);
  /// Later work of the stream waits for the event, if it was ever recorded.
  void hold(cudaStream_t stream);
  /// Returns at once if the event was never recorded.
  void wait();
  cudaEvent_t get() const { return event_; }

 private:
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
};

/// A ring of chunks of pinned memory, with an event each, for copies of pageable memory.
template <std::size_t count>
struct PinnedChunks {
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  /// Allocates the chunks. Call it before the first copy.
  void make(int device) {
    if (memory) return;
    for (Event& one : copied) one = Event(device, cudaEventDisableTiming);
    memory = allocate_pinned(count * chunk_bytes, device);
  }
  std::byte* chunk(std::size_t number) const {
    return static_cast<std::byte*>(memory->data) + number % count * chunk_bytes;
  }
  Event& event(std::size_t number) { return copied[number % count]; }

  StorageRef memory;
  std::array<Event, count> copied;
};

/// Copies from pageable CPU memory without waiting for the device, through pinned chunks. A chunk is reused
/// once its last copy is done.
class Upload {
 public:
  Upload(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  /// `from` may be changed when it returns.
  void copy(const void* from, void* to, std::size_t bytes);

 private:
  int device_;
  cudaStream_t stream_;
  PinnedChunks<4> chunks_;
  std::size_t next_ = 0;
};

/// Copies to pageable CPU memory, waiting for the device, through pinned chunks. One is copied out while the
/// next is copied in.
class Download {
 public:
  Download(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  struct Copy {
    const void* from = nullptr;  ///< on the device
    void* to = nullptr;
    std::size_t bytes = 0;
  };
  /// When it returns, all copies and all earlier work are done. It waits once if the copies fit into one
  /// chunk.
  void copy(std::span<const Copy> copies);

 private:
  int device_;
  cudaStream_t stream_;
  PinnedChunks<2> chunks_;
};

// --- staging.cpp
/// Copies on a second stream. The pool, whose stream computes, must outlive it.
std::unique_ptr<StagingQueue> make_staging_queue(int device, StreamPool& pool);
std::unique_ptr<Timer> make_event_timer(int device, cudaStream_t stream);

}  // namespace lockstep::kernels
