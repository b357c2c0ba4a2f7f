// Memory of a GPU in the order of one stream, and pinned memory on its way there and back.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>

#include "lockstep/tensor/storage.h"

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

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Copies from pageable CPU memory that do not wait for the device: by way of a few pinned pieces, each of
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
  static constexpr std::size_t piece_bytes = std::size_t{4} << 20, pieces = 4;
  void free() noexcept;

  int device_;
  cudaStream_t stream_;
  std::byte* pinned_ = nullptr;  // pieces * piece_bytes, made at the first copy
  std::array<cudaEvent_t, pieces> copied_{};
  std::size_t next_ = 0;
};

}  // namespace lockstep::kernels
