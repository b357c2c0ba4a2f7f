// The memory of tensors: reference-counted blocks of a device's memory, and the pool that reuses them without
// a call to the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace lockstep {

/// The device of a block of memory.
struct Device {
  /// The kinds of devices.
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;  ///< CPU or GPU
  int index = 0;          ///< which GPU; 0 for the CPU

  static constexpr Device cpu() { return {}; }                             ///< the CPU
  static constexpr Device cuda(int index) { return {Kind::cuda, index}; }  ///< A GPU, by number
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:0".
std::string to_string(const Device& device);

struct Storage;

/// Takes a block back when its last reference is gone.
class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  virtual void release(Storage* block) noexcept = 0;  ///< the block is free again
};

/// One block of memory. Only StorageRef and StorageOwners touch it.
struct Storage {
  void* data = nullptr;                 ///< address on the device
  std::size_t bytes = 0;                ///< size
  Device device;                        ///< whose memory it is
  std::shared_ptr<StorageOwner> owner;  ///< empty while the block is in its owner's free list
  Storage* next_free = nullptr;         ///< in its owner's free list
  std::atomic<int> references{0};       ///< how many StorageRefs it has
  /// The number of the last operation that wrote to it, see Tensor::last_write().
  mutable std::atomic<std::uint64_t> last_write{0};
};

/// Shared ownership of a block; as thread-safe as shared_ptr, and never allocates.
class StorageRef {
 public:
  StorageRef() = default;
  explicit StorageRef(Storage* block) noexcept : block_(block) { retain(); }  ///< takes a reference
  /// Shares the block.
  StorageRef(const StorageRef& other) noexcept : block_(other.block_) { retain(); }
  /// Takes the reference of `other`, which becomes empty.
  StorageRef(StorageRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  /// Takes over the reference.
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~StorageRef() {
    if (block_ && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::shared_ptr<StorageOwner> owner =
          std::move(block_->owner);  // the block may hold its owner's last reference
      owner->release(block_);
    }
  }

  const Storage* operator->() const noexcept { return block_; }  ///< the block
  explicit operator bool() const noexcept { return block_ != nullptr; }
  /// Whether this is the block's only reference.
  bool is_only() const noexcept { return block_ && block_->references.load(std::memory_order_acquire) == 1; }

 private:
  void retain() const noexcept {
    if (block_) block_->references.fetch_add(1, std::memory_order_relaxed);
  }

  Storage* block_ = nullptr;
};

/// CPU memory from the system: at least `bytes`, 64-byte aligned, uninitialised, returned on release.
/// Throws FailureError if memory is exhausted.
StorageRef allocate_cpu(std::size_t bytes);

/// Keeps CPU blocks by exact size, so that a step whose shapes repeat makes no request to the system. It
/// releases blocks of sizes that are no longer requested. Thread-safe. Blocks may outlive the pool.
class MemoryPool {
 public:
  MemoryPool();
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Like allocate_cpu.
  StorageRef allocate(std::size_t bytes);
  /// Bytes obtained from the system: in use, or kept for reuse.
  std::size_t reserved_bytes() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
