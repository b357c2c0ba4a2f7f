// One NCCL communicator from its start to its end: non-blocking, every wait bounded, and no thread ever
// inside it while another one is.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "comm/nccl/library.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

class NcclConnection {
 public:
  /// `host` must outlive it. timeout_s: the longest wait for other ranks; infinity: none but start and end is
  /// bounded.
  NcclConnection(Communicator& host, double timeout_s);
  /// Ends it together with the other ranks; after a failure, or while an exception unwinds, aborts it, in
  /// bounded time.
  ~NcclConnection();
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  /// Starts NCCL, if it has not been: collective over `host`. The calling thread's device is the rank's GPU.
  /// Throws FailureError, or UsageError if there is no NCCL, the same on all ranks, in at most half of
  /// timeout_s: before a watchdog with that patience ends the job.
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

  Communicator& host_;
  double timeout_s_;
  int exceptions_at_start_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Lock group_;  ///< held from begin_group() to end_group()
  const char* name_ = "";
  ncclResult_t result_ = ncclSuccess;  ///< of the call at hand, or of the group's: the first bad one
  bool failed_ = false;
};

}  // namespace lockstep::comm
