// The functions that the compiler calls for the accesses of kernels, and what they find.
#include "races.h"

#include <cstdio>

#include "runtime.h"

namespace lockstep::emulated_gpu {
namespace {

/// A thread of a block has a stack of this size; what is this near to a frame is on its stack.
constexpr std::ptrdiff_t stack_bytes = 128 * 1024;
thread_local bool runs_kernel = false;

std::size_t hash_of(std::uintptr_t word) {
  return static_cast<std::size_t>(word * 0x9e3779b97f4a7c15u >> 20);
}

}  // namespace

Races& races() {
  static Races& made = *new Races;  // threads may use it to the very end
  return made;
}

void Races::begin_launch(const char* kernel) {
  kernel_ = kernel;
  in_use_ = 0;
  if (++launch_ == 0) {
    cells_.assign(cells_.size(), {});
    launch_ = 1;
  }
}

void Races::begin_block(std::uint32_t number) {
  block_ = number + 1;
  ignored_.clear();
}

void Races::ignore(const void* first, std::size_t bytes) {
  if (bytes > 0) ignored_.emplace_back(static_cast<const std::byte*>(first), bytes);
}

void Races::in_kernel(bool is) { runs_kernel = is; }

Races::Cell& Races::cell_of(std::uintptr_t word) {
  if (2 * in_use_ >= cells_.size()) enlarge();
  for (std::size_t at = hash_of(word);; ++at) {
    Cell& cell = cells_[at % cells_.size()];
    if (cell.launch == launch_ && cell.word != word) continue;
    if (cell.launch != launch_) {
      cell = {.word = word, .launch = launch_};
      ++in_use_;
    }
    return cell;
  }
}

void Races::enlarge() {
  std::vector<Cell> before =
      std::exchange(cells_, std::vector<Cell>(cells_.empty() ? 4096 : 2 * cells_.size()));
  in_use_ = 0;
  for (const Cell& cell : before) {
    if (cell.launch == launch_) cell_of(cell.word) = cell;
  }
}

void Races::report(std::uintptr_t byte, std::uint32_t other, bool write) {
  ++count_;
  if (counts_only_) return;
  std::fprintf(stderr, "emulated GPU: %s: block %u %s a byte (%p) that block %u %s in the same launch\n",
               kernel_, block_ - 1, write ? "writes" : "reads", reinterpret_cast<void*>(byte), other - 1,
               write ? "reads or writes" : "writes");
  refuse("blocks of a launch must not depend on each other");
}

void Races::access(const void* first, std::size_t bytes, bool write) {
  if (!runs_kernel) return;
  if (calls_ == 0) calls_ = 1;
  if (!checks_) return;
  const auto* const begin = static_cast<const std::byte*>(first);
  const auto* const here = static_cast<const std::byte*>(__builtin_frame_address(0));
  if (begin > here - stack_bytes && begin < here + stack_bytes) return;
  for (const auto& [ignored, size] : ignored_) {
    if (begin >= ignored && begin < ignored + size) return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  for (std::uintptr_t byte = address; byte < address + bytes; ++byte) {
    Cell& cell = cell_of(byte / 4);
    std::uint32_t &writer = cell.writer[byte % 4], &reader = cell.reader[byte % 4];
    if (writer != nobody && writer != block_) return report(byte, writer, write);
    if (write) {
      if (reader != nobody && reader != block_) return report(byte, reader, write);
      writer = block_;
    } else {
      reader = reader == nobody || reader == block_ ? block_ : several;
    }
  }
}

}  // namespace lockstep::emulated_gpu

using lockstep::emulated_gpu::races;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* first, std::size_t bytes) { races().access(first, bytes, false); }
void __tsan_write_range(void* first, std::size_t bytes) { races().access(first, bytes, true); }

#define LOCKSTEP_ACCESS(bytes)                                                            \
  void __tsan_read##bytes(void* first) { races().access(first, bytes, false); }           \
  void __tsan_write##bytes(void* first) { races().access(first, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* first) { races().access(first, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* first) { races().access(first, bytes, true); } \
  void __tsan_volatile_read##bytes(void* first) { races().access(first, bytes, false); }  \
  void __tsan_volatile_write##bytes(void* first) { races().access(first, bytes, true); }
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
