// NCCL under its own names, but found late: a program that was built for GPUs, too, starts where NCCL is not,
// and one GPU does without it. Within this namespace the pointers hide the functions that nccl.h declares, so
// calls read as ever.
#pragma once

#include <nccl.h>

namespace lockstep::comm {

/// Throws UsageError if NCCL cannot be loaded, or is too old. Before that no function below may be called.
/// Any number of times, by any thread.
void load_nccl();

#define LOCKSTEP_NCCL_FUNCTIONS(use)                                                                       \
  use(ncclAllGather) use(ncclAllReduce) use(ncclBroadcast) use(ncclCommAbort) use(ncclCommDeregister)      \
      use(ncclCommDestroy) use(ncclCommFinalize) use(ncclCommGetAsyncError) use(ncclCommInitRankConfig)    \
          use(ncclCommRegister) use(ncclGetErrorString) use(ncclGetLastError) use(ncclGetUniqueId)         \
              use(ncclGetVersion) use(ncclGroupEnd) use(ncclGroupStart) use(ncclMemAlloc) use(ncclMemFree) \
                  use(ncclRecv) use(ncclReduce) use(ncclReduceScatter) use(ncclSend)

#define LOCKSTEP_LATE_FUNCTION(name) extern decltype(&::name) name;
LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

}  // namespace lockstep::comm
