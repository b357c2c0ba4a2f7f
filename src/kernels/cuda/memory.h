// Memory of a GPU in the order of one stream, pinned memory on its way there and back, and timers.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// Blocks from a CUDA memory pool that keeps what it has (release threshold at its maximum). A block is free
/// for the stream's later work as soon as its last reference goes: work asked for before still has it.
/// Thread-safe. Blocks may outlive this, and keep the stream alive.
class StreamPool {
 public:
  explicit StreamPool(int device);
  ~StreamPool();
  StreamPool(const StreamPool&) = delete;
  StreamPool& operator=(const StreamPool&) = delete;

  cudaStream_t stream() const;
  /// At least `bytes`, 256-byte aligned, uninitialised. Throws FailureError when there is none.
  StorageRef allocate(std::size_t bytes);
  /// Bytes obtained from the driver.
  std::size_t reserved_bytes() const;

  /// The stream is about to be captured: what is allocated meanwhile is the graph's. What the pool does not
  /// use now goes back to the driver, for the graph to have it.
  void begin_capture();
  /// The capture is over. Why blocks keep the graph from being launched; empty: they do not.
  std::string end_capture();

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Page-locked CPU memory, which the device copies from and to at full speed, while it computes. Throws
/// FailureError when there is none. 64-byte aligned, uninitialised, thread-safe.
StorageRef allocate_pinned(std::size_t bytes, int device);

/// Copies from pageable CPU memory that do not wait for the device: by way of a few pinned chunks, each of
/// which is used again once its last copy is over.
class Upload {
 public:
  Upload(int device, cudaStream_t stream);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  /// `from` may be changed when it returns.
  void copy(const void* from, void* to, std::size_t bytes);

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20, chunks = 4;
  void make();

  int device_;
  cudaStream_t stream_;
  StorageRef pinned_;  // chunks * chunk_bytes, made at the first copy, last of all
  std::array<cudaEvent_t, chunks> copied_{};
  std::size_t next_ = 0;
};

/// Copies to pageable CPU memory, which wait for the device: by way of pinned chunks, one of which is copied
/// out while the next is on its way.
class Download {
 public:
  Download(int device, cudaStream_t stream);
  ~Download();
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  struct Copy {
    const void* from = nullptr;  ///< on the device
    void* to = nullptr;
    std::size_t bytes = 0;
  };
  /// All copies are done when it returns, and so is all work asked for before. One wait where they fit into
  /// a chunk together.
  void copy(std::span<const Copy> copies);

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20, chunks = 2;
  void make();

  int device_;
  cudaStream_t stream_;
  StorageRef pinned_;  // the chunks; made at the first copy
  std::array<cudaEvent_t, chunks> copied_{};
};

// --- staging.cpp
/// Copies on a second stream. The pool, whose stream computes, must outlive it.
std::unique_ptr<StagingQueue> make_staging_queue(int device, StreamPool& pool);
std::unique_ptr<Timer> make_event_timer(int device, cudaStream_t stream);

}  // namespace lockstep::kernels
