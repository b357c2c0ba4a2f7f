// NCCL: its functions, loaded at run time, and one communicator from its start to its end.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

/// Throws FailureError with the call's name, CUDA's own text and the rank unless it succeeded.
inline void check_cuda(cudaError_t status, const char* call, int rank) {
  if (status == cudaSuccess) return;
  throw FailureError("{} failed on rank {}: {} ({})", call, rank, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

/// Throws UsageError if NCCL cannot be loaded, or is too old. Must be called before any function of NCCL; any
/// number of times, on any thread. Loading at run time lets a program with GPU support start where NCCL is
/// missing; a single GPU does not need it. Within this namespace the pointers below hide the functions of
/// nccl.h, so calls look the same.
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

/// One NCCL communicator. It is non-blocking, every wait has a limit, and only one thread at a time calls it.
class NcclConnection {
 public:
  /// `host` must outlive it. timeout_s: the longest wait for other ranks; infinity: only the start and the
  /// end have a limit.
  NcclConnection(HostGroup& host, double timeout_s);
  /// Finalizes NCCL together with the other ranks. Aborts it, in bounded time, after a failure or while an
  /// exception unwinds.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  /// Starts NCCL unless it runs. Collective over `host`. The calling thread's device is the rank's GPU.
  /// Throws FailureError, or UsageError without NCCL, the same on all ranks, within half of timeout_s, before
  /// a watchdog with that limit ends the job.
  void start();
  bool started() const { return shared_->comm != nullptr; }

  /// Makes one call: call(comm) returns NCCL's result. Returns when NCCL has accepted it, which may need the
  /// other ranks the first time. Throws FailureError with the call's name if it fails; within a group
  /// end_group() throws.
  template <class Call>
  void make(const char* name, const Call& call) {
    if (group_) {
      note(name, call(shared_->comm));
      return;
    }
    {
      const Lock lock = hold();
      note(name, call(shared_->comm));
    }
    settle();
  }
  void begin_group();
  void end_group();

  /// Throws FailureError if NCCL reports an asynchronous error, or has failed before.
  void check();
  /// The asynchronous error that NCCL reports; empty: none. For any thread.
  std::string async_error() const;
  bool failed() const { return failed_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A thread that is stuck inside NCCL (async_error()) may use this after the end of the connection.
  struct Shared {
    /// ncclCommGetAsyncError changes state: it must not run at the same time as another call.
    std::mutex mutex;
    ncclComm_t comm = nullptr;
  };
  /// Throws FailureError if another thread stays inside NCCL.
  Lock hold();
  void start_together();
  void note(const char* name, ncclResult_t result);
  /// Waits until NCCL has accepted the noted call.
  void settle();
  [[noreturn]] void fail(const char* name, ncclResult_t result);
  void finish();
  void give_up() noexcept;

  HostGroup& host_;
  double timeout_s_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Lock group_;  ///< held from begin_group() to end_group()
  const char* name_ = "";
  ncclResult_t result_ = ncclSuccess;  ///< of the current call; in a group of the first failed call
  bool failed_ = false;
};

}  // namespace lockstep::comm
