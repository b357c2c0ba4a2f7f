// The functions that the compiler calls for the accesses of kernels, and what they find.
#include "races.h"

#include <algorithm>
#include <cstdio>

#include "counting.h"
#include "runtime.h"

namespace lockstep::emulated_gpu {
namespace {

/// A thread of a block has a stack of this size; what is this near to a frame is on its stack.
constexpr std::ptrdiff_t stack_bytes = 128 * 1024;
thread_local bool runs_kernel = false;

constexpr std::size_t max_pages = 1 << 14;  // 2 GiB of them

/// Where everything was checked, the program says at its end how much that was.
struct LastWord {
  ~LastWord() {
    if (!races().checks()) return;
    std::fprintf(
        stderr, "emulated GPU: %ju launches and %ju accesses of the device's memory were checked for races\n",
        std::uintmax_t{races().launches()}, std::uintmax_t{races().accesses()});
  }
} last_word;

}  // namespace

Races& races() {
  static Races& made = *new Races;  // threads may use it to the very end
  return made;
}

void Races::begin_launch(const char* kernel) {
  constexpr Block most = 1u << 31;  // which leaves enough numbers for any launch
  kernel_ = kernel;
  launches_ += checks_;
  if (last_ >= most || pages_.size() > max_pages) {
    pages_.clear();
    last_read_ = {};
    last_ = 0;
  }
  several_ = ++last_;
}

void Races::begin_block(std::uint32_t number) {
  block_ = several_ + 1 + number;
  last_ = std::max(last_, block_);
  ignored_.clear();
}

void Races::ignore(const void* first, std::size_t bytes) {
  if (bytes > 0) ignored_.emplace_back(static_cast<const std::byte*>(first), bytes);
}

void Races::in_kernel(bool is) { runs_kernel = is; }

/// Of bytes in one page. Where the count is known, this has no branch for each byte.
template <bool write>
inline bool Races::races_in(std::uintptr_t first, std::size_t bytes) {
  Page& page = pages_.of(first);
  Block* const writer = page.writer.data() + first % page_bytes;
  Block* const reader = page.reader.data() + first % page_bytes;
  const Block several = several_, block = block_;
  bool found = false;
  for (std::size_t i = 0; i < bytes; ++i) {
    found |= writer[i] >= several && writer[i] != block;
    if constexpr (write) {
      found |= reader[i] >= several && reader[i] != block;
      writer[i] = block;
    } else {
      reader[i] = reader[i] < several || reader[i] == block ? block : several;
    }
  }
  return found;
}

void Races::report(const void* first, bool write) {
  ++count_;
  if (counts_only_) return;
  std::fprintf(stderr, "emulated GPU: %s: block %u %s bytes (at %p) that another %s in the same launch\n",
               kernel_, block_ - several_ - 1, write ? "writes" : "reads", first,
               write ? "reads or writes" : "writes");
  refuse("blocks of a launch must not depend on each other");
}

template <bool write>
inline void Races::access(const void* first, std::size_t bytes) {
  if (!runs_kernel) return;
  seen_ = true;
  if (!checks_ && !counting().on()) return;
  const auto* const begin = static_cast<const std::byte*>(first);
  const auto* const here = static_cast<const std::byte*>(__builtin_frame_address(0));
  if (begin > here - stack_bytes && begin < here + stack_bytes) return;
  for (const auto& [ignored, size] : ignored_) {
    if (begin >= ignored && begin < ignored + size) return;
  }
  if (counting().on()) return counting().access<write>(reinterpret_cast<std::uintptr_t>(first), bytes);
  ++accesses_;
  if constexpr (!write) {
    // A kernel's arguments, which each thread reads. Blocks run one after another, so nothing new is seen.
    const Range range{begin, bytes, block_};
    if (bytes > 16 && range == last_read_) return;
    if (bytes > 16) last_read_ = range;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  const std::size_t room = page_bytes - address % page_bytes;
  bool found = false;
  if (bytes <= room) [[likely]] {
    found = races_in<write>(address, bytes);
  } else {
    for (std::size_t done = 0, part = room; done < bytes;
         done += part, part = std::min(page_bytes, bytes - done))
      found |= races_in<write>(address + done, part);
  }
  if (found) report(first, write);
}

}  // namespace lockstep::emulated_gpu

using lockstep::emulated_gpu::races;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* first, std::size_t bytes) { races().access<false>(first, bytes); }
void __tsan_write_range(void* first, std::size_t bytes) { races().access<true>(first, bytes); }

#define LOCKSTEP_ACCESS(bytes)                                                            \
  void __tsan_read##bytes(void* first) { races().access<false>(first, bytes); }           \
  void __tsan_write##bytes(void* first) { races().access<true>(first, bytes); }           \
  void __tsan_unaligned_read##bytes(void* first) { races().access<false>(first, bytes); } \
  void __tsan_unaligned_write##bytes(void* first) { races().access<true>(first, bytes); } \
  void __tsan_volatile_read##bytes(void* first) { races().access<false>(first, bytes); }  \
  void __tsan_volatile_write##bytes(void* first) { races().access<true>(first, bytes); }
LOCKSTEP_ACCESS(1)
LOCKSTEP_ACCESS(2)
LOCKSTEP_ACCESS(4)
LOCKSTEP_ACCESS(8)
LOCKSTEP_ACCESS(16)
#undef LOCKSTEP_ACCESS

// Atomic operations, of the program around the kernels only: as they would be without these calls.
#define LOCKSTEP_ATOMIC(bits, type)                                                                   \
  type __tsan_atomic##bits##_load(const volatile type* at, int) { return __atomic_load_n(at, 5); }    \
  void __tsan_atomic##bits##_store(volatile type* at, type x, int) { __atomic_store_n(at, x, 5); }    \
  type __tsan_atomic##bits##_exchange(volatile type* at, type x, int) {                               \
    return __atomic_exchange_n(at, x, 5);                                                             \
  }                                                                                                   \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type x, int) {                              \
    return __atomic_fetch_add(at, x, 5);                                                              \
  }                                                                                                   \
  type __tsan_atomic##bits##_fetch_sub(volatile type* at, type x, int) {                              \
    return __atomic_fetch_sub(at, x, 5);                                                              \
  }                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* was, type x, int, int) { \
    return __atomic_compare_exchange_n(at, was, x, false, 5, 5);                                      \
  }                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* was, type x, int, int) {   \
    return __atomic_compare_exchange_n(at, was, x, false, 5, 5);                                      \
  }
LOCKSTEP_ATOMIC(8, std::uint8_t)
LOCKSTEP_ATOMIC(16, std::uint16_t)
LOCKSTEP_ATOMIC(32, std::uint32_t)
LOCKSTEP_ATOMIC(64, std::uint64_t)
#undef LOCKSTEP_ATOMIC
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(5); }

}  // extern "C"
