#include "comm/nccl/library.h"

#include "lockstep/base/late_library.h"
#include "lockstep/comm/nccl.h"

namespace lockstep::comm {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = nullptr;
LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

namespace {

/// 0 if it does not say.
int version() {
  int number = 0;
  return ncclGetVersion(&number) == ncclSuccess ? number : 0;
}

void load_all() {
  const LateLibrary nccl("libnccl.so.2",
                         {LOCKSTEP_NCCL_FOLDER, LOCKSTEP_CUDA_FOLDER, "/usr/local/cuda/lib64"},
                         "install it, load its module, or name its folder in LD_LIBRARY_PATH (a single rank "
                         "does without it)");
#define LOCKSTEP_FIND(name) nccl.find(#name, name);
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
  if (version() >= NCCL_VERSION(2, 26, 0)) return;
  throw LibraryError(
      fmt::format("libnccl.so.2: its version is {}.{}, and 2.26 is the first that keeps the calls of several "
                  "communicators in order",
                  version() / 10000, version() / 100 % 100),
      "load the module of a newer one, or name its folder in LD_LIBRARY_PATH");
}

}  // namespace

void load_nccl() {
  static const bool loaded = (load_all(), true);
  static_cast<void>(loaded);
}

NcclFound find_nccl() {
  try {
    load_nccl();
    const int number = version();
    return {.version = fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100),
            .problem = {},
            .remedy = {}};
  } catch (const LibraryError& error) {
    return {.version = {}, .problem = error.cause, .remedy = error.remedy};
  }
}

}  // namespace lockstep::comm
