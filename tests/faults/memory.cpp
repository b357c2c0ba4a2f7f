// A preloaded library: while a checkpoint is laid out, the allocation of HDF5 that LOCKSTEP_MEMORY counts to
// (from 0) finds no memory. The program under test knows nothing of it.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* memory, std::size_t bytes);

namespace {

std::atomic<long> left{-1};  // allocations before the one that fails; below 0: none will

bool fails(const void* caller) {
  if (left < 0) return false;
  Dl_info library{};
  if (::dladdr(caller, &library) == 0 || !std::strstr(library.dli_fname, "hdf5") || left-- != 0) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {

int mkostemp(char* path, int flags) {
  static auto* const next = reinterpret_cast<int (*)(char*, int)>(::dlsym(RTLD_NEXT, "mkostemp"));
  static const char* const number = std::getenv("LOCKSTEP_MEMORY");
  static std::atomic<bool> begun{false};
  const int descriptor = next(path, flags);
  if (number && std::strstr(path, "lockstep-layout") && !begun.exchange(true)) {
    static const std::string layout = path;
    std::atexit([] { ::unlink(layout.c_str()); });  // HDF5 may end the process
    left = std::atol(number);
  }
  return descriptor;
}

void* malloc(std::size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_realloc(memory, bytes);
}

}  // extern "C"
