// Free blocks of memory, for pools that in a steady state make no request to the system.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/tensor/storage.h"

namespace lockstep {

/// The free blocks of a pool by size, and how much memory the pool has. Not thread-safe.
class BlockCache {
 public:
  /// Takes a free block of exactly this size into use. Returns null if there is none.
  Storage* take(std::size_t bytes) {
    Size& size = sizes_[bytes];
    ++requests_;
    if (size.last_request > 0) longest_wait_ = std::max(longest_wait_, requests_ - size.last_request);
    size.last_request = requests_;
    return size.first_free ? use_free(size) : nullptr;
  }
  /// The pool has obtained a block, which is in use.
  void add(std::size_t bytes) {
    reserved_bytes_ += bytes;
    obtained_[bytes] = &sizes_[bytes];
    use(bytes);
  }
  /// The block is free.
  void put(Storage* block) {
    Size& size = sizes_[block->bytes];
    block->next_free = std::exchange(size.first_free, block);
    used_bytes_ -= block->bytes;
  }

  /// Before the pool obtains a block: if it would hold more than twice the peak of memory in use, takes a
  /// free block of up to twice the size into use, if there is one, and returns it. Otherwise it gives back
  /// sizes that nobody has requested for a long time: twice the longest interval between two requests of any
  /// size; beyond four times the peak, any sizes. So shapes that repeat lose nothing, even if they repeat
  /// rarely, and others (each token of a text is a longer sequence, each batch of graphs has other numbers of
  /// nodes and edges) do not fill the memory.
  template <class GiveBack>
  Storage* make_room(std::size_t bytes, const GiveBack& give_back) {
    const std::size_t max_bytes =
        std::max(small_pool_bytes, 2 * std::max(max_used_bytes_, used_bytes_ + bytes));
    if (reserved_bytes_ + bytes <= max_bytes) return nullptr;
    for (auto larger = obtained_.lower_bound(bytes); larger != obtained_.end() && larger->first <= 2 * bytes;
         ++larger) {
      if (!larger->second->first_free) continue;
      Storage* const block = use_free(*larger->second);
      if (sizes_.size() > max_sizes && !obtained_.contains(bytes)) sizes_.erase(bytes);
      return block;
    }
    while (reserved_bytes_ + bytes > max_bytes) {
      auto oldest = sizes_.end();
      for (auto size = sizes_.begin(); size != sizes_.end(); ++size)
        if (size->second.first_free &&
            (oldest == sizes_.end() || size->second.last_request < oldest->second.last_request))
          oldest = size;
      if (oldest == sizes_.end()) return nullptr;
      const bool is_old = requests_ - oldest->second.last_request > 2 * longest_wait_;
      if (!is_old && reserved_bytes_ + bytes <= 2 * max_bytes) return nullptr;
      clear(oldest->second, give_back);
      if (is_old && sizes_.size() <= max_sizes) continue;  // its last request still counts
      obtained_.erase(oldest->first);
      sizes_.erase(oldest);
    }
    return nullptr;
  }
  /// Gives back all free blocks. Returns whether there were any.
  template <class GiveBack>
  bool clear(const GiveBack& give_back) {
    const std::size_t before = reserved_bytes_;
    for (auto& [exact, size] : sizes_) clear(size, give_back);
    return reserved_bytes_ < before;
  }

  std::size_t reserved_bytes() const { return reserved_bytes_; }  ///< in use or free

 private:
  /// A pool of this size or less gives nothing back.
  static constexpr std::size_t small_pool_bytes = std::size_t{16} << 20;
  /// More sizes without a block are not remembered.
  static constexpr std::size_t max_sizes = 4096;

  struct Size {
    Storage* first_free = nullptr;
    std::uint64_t last_request = 0;  // counted from 1; 0: none
  };

  Storage* use_free(Size& size) {
    Storage* const block = size.first_free;
    size.first_free = block->next_free;
    use(block->bytes);
    return block;
  }
  void use(std::size_t bytes) {
    used_bytes_ += bytes;
    max_used_bytes_ = std::max(max_used_bytes_, used_bytes_);
  }
  template <class GiveBack>
  void clear(Size& size, const GiveBack& give_back) {
    while (Storage* const block = size.first_free) {
      size.first_free = block->next_free;
      reserved_bytes_ -= block->bytes;
      give_back(block);
    }
  }

  std::unordered_map<std::size_t, Size> sizes_;
  std::map<std::size_t, Size*> obtained_;  // those of add(), in order
  std::uint64_t requests_ = 0, longest_wait_ = 0;
  std::size_t reserved_bytes_ = 0, used_bytes_ = 0, max_used_bytes_ = 0;
};

}  // namespace lockstep
