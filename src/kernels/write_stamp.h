// WriteStamp: when operations last wrote a tensor, so that what was made of its values can tell whether they
// are still those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/ops/operation.h"

namespace lockstep::kernels {

/// Watches a tensor's memory, whoever holds it, until it is destroyed or assigned to. Operations and copies
/// of all backends of a process count, each with one number for all that it writes. What a captured graph
/// writes counted when it was captured; what others write (own kernels, transports, the program itself on a
/// CPU) is not seen.
class WriteStamp {
 public:
  WriteStamp() = default;  ///< watches nothing
  explicit WriteStamp(const Tensor& tensor);
  ~WriteStamp();
  WriteStamp(WriteStamp&& other) noexcept;
  WriteStamp& operator=(WriteStamp&& other) noexcept;
  WriteStamp(const WriteStamp&) = delete;
  WriteStamp& operator=(const WriteStamp&) = delete;

  /// The number of the last operation that wrote some of it; 0: none since it has been watched.
  std::uint64_t last() const;
  /// Whether this watches the memory of the tensor: both begin at one address.
  /// False for no tensor.
  bool is_of(const Tensor& tensor) const { return address_ && address_ == tensor.raw(); }

 private:
  void* address_ = nullptr;
};

/// Called by Backend: the operation has been enqueued.
void stamp_writes(const ops::AnyOperation& operation);
/// The same of a copy to the tensor.
void stamp_write(const Tensor& tensor);

}  // namespace lockstep::kernels
