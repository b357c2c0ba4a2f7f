#include "lockstep/tensor/storage.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "lockstep/base/error.h"
#include "tensor/block_cache.h"

namespace lockstep {
namespace {

constexpr std::size_t alignment_bytes = 64;

std::size_t block_bytes(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + alignment_bytes - 1) / alignment_bytes) * alignment_bytes;
}

std::unique_ptr<Storage> new_block(std::size_t bytes) {
  auto block = std::make_unique<Storage>();
  block->data = std::aligned_alloc(alignment_bytes, bytes);
  if (!block->data) {
    throw FailureError("out of memory: no {} bytes left; use a smaller batch or set train.micro_batches",
                       bytes);
  }
  block->bytes = bytes;
  return block;
}

void delete_block(Storage* block) noexcept {
  std::free(block->data);
  delete block;
}

class SystemOwner final : public StorageOwner {
 public:
  void release(Storage* block) noexcept override { delete_block(block); }
};

}  // namespace

StorageRef allocate_cpu(std::size_t bytes) {
  auto block = new_block(block_bytes(bytes));
  block->owner = std::make_shared<SystemOwner>();
  return StorageRef(block.release());
}

class MemoryPool::State final : public StorageOwner, public std::enable_shared_from_this<State> {
 public:
  ~State() override { cache_.clear(delete_block); }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t exact = block_bytes(bytes);
    const std::lock_guard lock(mutex_);
    Storage* block = cache_.take(exact);
    if (!block) block = cache_.make_room(exact, delete_block);
    if (!block) {
      block = new_block(exact).release();
      cache_.add(exact);
    }
    block->owner = shared_from_this();
    return StorageRef(block);
  }

  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    cache_.put(block);
  }

  std::size_t reserved_bytes() const {
    const std::lock_guard lock(mutex_);
    return cache_.reserved_bytes();
  }

 private:
  mutable std::mutex mutex_;
  BlockCache cache_;
};

MemoryPool::MemoryPool() : state_(std::make_shared<State>()) {}
MemoryPool::~MemoryPool() = default;
StorageRef MemoryPool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
std::size_t MemoryPool::reserved_bytes() const { return state_->reserved_bytes(); }

}  // namespace lockstep
