#include "support/allocations.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

extern "C" {

// The names glibc gives its allocator, so that ours can count and pass on.
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

}  // extern "C"

namespace lockstep::test {
namespace {

enum class Owner { ours, onednn, others };

/// Code of one loaded object.
struct Code {
  std::uintptr_t begin, end;
  Owner owner;
};

/// The code that was loaded at some moment, by address.
struct LoadedCode {
  std::array<Code, 2048> parts;
  std::size_t count;
  unsigned long long changes;  ///< objects loaded and unloaded until then
};

constinit std::atomic<const LoadedCode*> loaded{nullptr};  // none until the first AllocationCount
constinit std::atomic<long> own{0}, onednn{0}, others{0};

Owner owner_of(std::string_view path) {
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file.starts_with("libdnnl")) return Owner::onednn;
  if (file.empty()) return Owner::ours;  // the program itself
  for (const std::string_view name :
       {"liblockstep", "libc.so", "libc-", "libstdc++", "libfmt", "libspdlog"}) {
    if (file.starts_with(name)) return Owner::ours;
  }
  return Owner::others;
}

unsigned long long changes_of(const dl_phdr_info& object) { return object.dlpi_adds + object.dlpi_subs; }

int read_changes(dl_phdr_info* object, std::size_t, void* changes) {
  *static_cast<unsigned long long*>(changes) = changes_of(*object);
  return 1;  // the same for every object
}

int add_object(dl_phdr_info* object, std::size_t, void* memory) {
  auto& code = *static_cast<LoadedCode*>(memory);
  code.changes = changes_of(*object);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    if (code.count == code.parts.size()) std::abort();
    const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    code.parts[code.count++] = {begin, begin + segment.p_memsz, owner_of(object->dlpi_name)};
  }
  return 0;
}

/// The hooks must not take the loader's locks, so they look callers up in a table, which is made again when
/// something was loaded since. Old tables stay: another thread may be reading one.
void learn_owners() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  unsigned long long changes = 0;
  dl_iterate_phdr(read_changes, &changes);
  if (const LoadedCode* const known = loaded; known && known->changes == changes) return;
  auto* const code = static_cast<LoadedCode*>(__libc_calloc(1, sizeof(LoadedCode)));
  if (!code) std::abort();
  dl_iterate_phdr(add_object, code);
  std::sort(code->parts.begin(), code->parts.begin() + code->count,
            [](const Code& a, const Code& b) { return a.end < b.end; });
  loaded.store(code, std::memory_order_release);
}

/// Code loaded after the table was made counts as ours.
Owner owner_at(const void* caller) {
  const LoadedCode* const known = loaded.load(std::memory_order_acquire);
  if (!known) return Owner::ours;
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  const auto end = known->parts.begin() + known->count;
  const auto code =
      std::partition_point(known->parts.begin(), end, [=](const Code& each) { return each.end <= address; });
  return code != end && address >= code->begin ? code->owner : Owner::ours;
}

void count_malloc(const void* caller) {
  if (loaded.load(std::memory_order_relaxed) == nullptr) return;  // also before static initialisation
  const Owner owner = owner_at(caller);
  ++(owner == Owner::ours ? own : owner == Owner::onednn ? onednn : others);
}

/// operator new: C++ libraries other than oneDNN work for us.
void* counted_new(std::size_t bytes, const void* caller) {
  ++(owner_at(caller) == Owner::onednn ? onednn : own);
  if (void* const memory = __libc_malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* counted_new(std::size_t bytes, std::align_val_t alignment, const void* caller) {
  ++(owner_at(caller) == Owner::onednn ? onednn : own);
  if (void* const memory = __libc_memalign(static_cast<std::size_t>(alignment), bytes)) return memory;
  throw std::bad_alloc();
}

Allocations so_far() { return {own, onednn, others}; }

}  // namespace

AllocationCount::AllocationCount() {
  learn_owners();
  before_ = so_far();
}

Allocations AllocationCount::made() const {
  const Allocations now = so_far();
  return {now.own - before_.own, now.onednn - before_.onednn, now.others - before_.others};
}

}  // namespace lockstep::test

using lockstep::test::count_malloc;
using lockstep::test::counted_new;

extern "C" {

void* malloc(std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  return __libc_realloc(block, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  count_malloc(__builtin_return_address(0));
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}

}  // extern "C"

// The nothrow forms of the standard library end in these.
void* operator new(std::size_t bytes) { return counted_new(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return counted_new(bytes, __builtin_return_address(0)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, alignment, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted_new(bytes, alignment, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
