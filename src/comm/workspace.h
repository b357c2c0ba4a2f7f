// Memory for intermediate results, kept from use to use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::comm {

class Workspace {
 public:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t rounded_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  /// Grows to `bytes`, 64-byte aligned; what it held is lost if it does.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded_up(bytes))));
    if (!memory_) throw FailureError("tree sum: no memory for a buffer of {} bytes", bytes);
    bytes_ = bytes;
  }
  /// Gives the memory up without freeing it.
  void leave() { static_cast<void>(memory_.release()); }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::comm
