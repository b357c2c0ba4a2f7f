// NCCL: its functions, loaded late, and one communicator from its start to its end.
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

class NcclConnection {
 public:
  /// `host` must outlive it. timeout_s: the longest wait for other ranks; infinity: none but start and end is
  /// bounded.
  NcclConnection(HostGroup& host, double timeout_s);
  /// Ends it together with the other ranks; after a failure, or while an exception unwinds, aborts it, in
  /// bounded time.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  /// Starts NCCL, if it has not been: collective over `host`. The calling thread's device is the rank's GPU.
  /// Throws FailureError, or UsageError if there is no NCCL, the same on all ranks, in at most half of
  /// timeout_s: before a watchdog with that backoff ends the job.
  void start();
  bool started() const { return shared_->comm != nullptr; }

  /// Makes one call: call(comm) returns NCCL's result. Returns once NCCL has taken it up, which may need
  /// other ranks the first time; throws FailureError with the call's name otherwise. Within a group a failure
  /// is thrown by end_group().
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

  /// Throws FailureError if NCCL has found a failure by itself, or failed before.
  void check();
  /// What it has found by itself, or nothing. Any thread.
  std::string async_error() const;
  bool failed() const { return failed_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// What a thread that NCCL does not let go (async_error()) has in its hands after the connection's end.
  struct Shared {
    /// ncclCommGetAsyncError does more than look: it must not run beside another call.
    std::mutex mutex;
    ncclComm_t comm = nullptr;
  };
  /// Throws FailureError if another thread stays inside NCCL.
  Lock hold();
  void start_together();
  void note(const char* name, ncclResult_t result);
  /// Waits until the noted call is taken up.
  void settle();
  [[noreturn]] void fail(const char* name, ncclResult_t result);
  void finish();
  void give_up() noexcept;

  HostGroup& host_;
  double timeout_s_;
  int exceptions_at_start_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Lock group_;  ///< held from begin_group() to end_group()
  const char* name_ = "";
  ncclResult_t result_ = ncclSuccess;  ///< of the call at hand, or of the group's: the first bad one
  bool failed_ = false;
};

}  // namespace lockstep::comm
