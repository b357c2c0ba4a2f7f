#include "lockstep/tensor/storage.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t alignment_bytes = 64;
/// A pool of this size or less releases nothing.
constexpr std::size_t small_pool_bytes = std::size_t{16} << 20;

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
  ~State() override {
    for (auto& [bytes, size] : sizes_) give_back(size);
  }

  StorageRef allocate(std::size_t bytes) {
    const std::size_t exact = block_bytes(bytes);
    const std::lock_guard lock(mutex_);
    Size& size = sizes_[exact];
    ++requests_;
    if (size.last_request > 0) longest_wait_ = std::max(longest_wait_, requests_ - size.last_request);
    size.last_request = requests_;
    Storage* block = size.first_free;
    if (block) {
      size.first_free = block->next_free;
    } else {
      free_memory_for(exact);
      block = new_block(exact).release();
      reserved_bytes_ += exact;
    }
    used_bytes_ += exact;
    max_used_bytes_ = std::max(max_used_bytes_, used_bytes_);
    block->owner = shared_from_this();
    return StorageRef(block);
  }

  void release(Storage* block) noexcept override {
    const std::lock_guard lock(mutex_);
    Size& size = sizes_.find(block->bytes)->second;
    block->next_free = std::exchange(size.first_free, block);
    used_bytes_ -= block->bytes;
  }

  std::size_t reserved_bytes() const {
    const std::lock_guard lock(mutex_);
    return reserved_bytes_;
  }

 private:
  struct Size {
    Storage* first_free = nullptr;
    std::uint64_t last_request = 0;  // counted from 1; 0: none
  };

  /// If the pool would hold more than twice the peak of memory in use, releases sizes that nobody has
  /// requested for a long time: twice the longest interval between two requests of any size. So shapes that
  /// repeat lose nothing, even if they repeat rarely, and others (each token of a text is a longer sequence)
  /// do not fill the memory.
  void free_memory_for(std::size_t bytes) {
    const std::size_t max_bytes =
        std::max(small_pool_bytes, 2 * std::max(max_used_bytes_, used_bytes_ + bytes));
    while (reserved_bytes_ + bytes > max_bytes) {
      Size* oldest = nullptr;
      for (auto& [exact, size] : sizes_) {
        if (size.first_free && (!oldest || size.last_request < oldest->last_request)) oldest = &size;
      }
      if (!oldest || requests_ - oldest->last_request <= 2 * longest_wait_) return;
      give_back(*oldest);
    }
  }

  void give_back(Size& size) noexcept {
    while (Storage* const block = size.first_free) {
      size.first_free = block->next_free;
      reserved_bytes_ -= block->bytes;
      delete_block(block);
    }
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, Size> sizes_;
  std::uint64_t requests_ = 0, longest_wait_ = 0;
  std::size_t reserved_bytes_ = 0;  // in use or free
  std::size_t used_bytes_ = 0, max_used_bytes_ = 0;
};

MemoryPool::MemoryPool() : state_(std::make_shared<State>()) {}
MemoryPool::~MemoryPool() = default;
StorageRef MemoryPool::allocate(std::size_t bytes) { return state_->allocate(bytes); }
std::size_t MemoryPool::reserved_bytes() const { return state_->reserved_bytes(); }

}  // namespace lockstep
