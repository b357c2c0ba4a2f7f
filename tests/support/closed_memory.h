// Memory of a device that no program can touch, whoever has not opened it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/storage.h"

namespace lockstep::test {

/// Address space that is closed but while somebody has access. Blocks are kept by size.
class ClosedMemory final : public StorageOwner, public std::enable_shared_from_this<ClosedMemory> {
 public:
  ClosedMemory() {
    void* const memory =
        ::mmap(nullptr, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no address space for a fake device");
    begin_ = static_cast<std::byte*>(memory);
  }
  ~ClosedMemory() override { ::munmap(begin_, room_bytes); }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t size = (std::max<std::size_t>(1, bytes) + 255) / 256 * 256;
    const std::lock_guard lock(mutex_);
    auto block = std::make_unique<Storage>();
    std::vector<void*>& free = free_[size];
    if (!free.empty()) {
      block->data = free.back();
      free.pop_back();
    } else {
      if (used_bytes_ + size > room_bytes) throw FailureError("the fake device is out of memory");
      block->data = begin_ + used_bytes_;
      used_bytes_ += size;
    }
    block->bytes = size;
    block->device = Device::cuda(0);
    block->owner = shared_from_this();
    return StorageRef(block.release());
  }
  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    free_.at(block->bytes).push_back(block->data);
    delete block;
  }
  std::size_t used_bytes() const { return used_bytes_; }

  /// Counted: a loader's thread may copy next to an operation.
  void open() {
    const std::lock_guard lock(mutex_);
    if (accesses_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    if (--accesses_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr std::size_t room_bytes = std::size_t{1} << 30;
  void protect(int allowed) noexcept {
    if (::mprotect(begin_, room_bytes, allowed) != 0) std::abort();
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  std::size_t used_bytes_ = 0;
  std::map<std::size_t, std::vector<void*>> free_;
  int accesses_ = 0;
};

class Access {
 public:
  explicit Access(ClosedMemory& memory) : memory_(memory) { memory_.open(); }
  ~Access() { memory_.close(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  ClosedMemory& memory_;
};

}  // namespace lockstep::test
