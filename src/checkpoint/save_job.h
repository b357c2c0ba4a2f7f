// Private to the module: a save of the files of one step, synchronous or during training.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/file_writer.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Runs one piece of work at a time on a second thread of low priority: while
/// cores are busy it takes what they leave. Used by one thread.
class WorkerThread {
 public:
  WorkerThread() = default;
  /// Waits for the work.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  /// What was started before is over. FailureError if there can be no thread.
  void start(std::function<void()> work);
  bool running() const { return running_; }
  /// The work has ended by an exception, which finish() has not thrown yet.
  bool failed() const { return !running_ && error_ != nullptr; }
  /// Waits for the work, and throws what it threw, once.
  void finish();

 private:
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> waited_for_{false};
  std::exception_ptr error_;  // the thread's while it runs
};

/// Memory for the copies of ranks' shares, kept from one save to the next.
struct SaveMemory {
  std::unique_ptr<std::byte[]> data;
  std::uint64_t bytes = 0;

  /// What was there is lost.
  void reserve(std::uint64_t wanted_bytes);
};

/// The states of a save.
enum class SaveAction {
  proceed,  ///< what comes next is a worker thread's, if there is one
  wait,     ///< what comes next is done here
  give_up,
};

/// A profile snapshot and a checkpoint, or the latter alone, on their way to their names. Every rank writes
/// its share of them; then rank 0 publishes them, in order, so that a reader who finds the last finds all.
///
/// Destroying a job that is not done drops it, its temporary files too.
class SaveJob {
 public:
  enum class State {
    writing,     ///< ranks write their shares: their worker threads do, or advance() will
    written,     ///< all shares are on storage; advance() publishes
    publishing,  ///< rank 0's worker thread publishes
    done,
  };
  struct Options {
    bool async = false;                     ///< worker threads write from copies of the shares
    std::function<void()> check_may_write;  ///< as SaveOptions::check_may_write
    std::function<void()> published;        ///< on rank 0, once the files have their names; calls no MPI
  };

  /// Copies this rank's shares into `memory` where they may change or cannot be written from where they are.
  /// `memory` and the communicator outlive the job. Collective.
  SaveJob(std::vector<std::unique_ptr<FileWriter>> files, Options options, SaveMemory& memory,
          comm::HostGroup& communicator);
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  State state() const { return state_; }
  const std::string& path() const { return files_.back()->path(); }  ///< of the checkpoint
  bool running() const { return worker_.running(); }                 ///< this rank's worker thread
  bool failed() const { return worker_.failed(); }

  /// Ends the present state: this rank's part of it, then everybody's. A worker thread that is not through
  /// gets help, since it gives way to whatever else the node does. Collective. An error on any rank is that
  /// of all, and the job is of no use any more; FailureError for give_up.
  void advance(SaveAction action);

 private:
  void copy_shares(SaveMemory& memory);
  void write_shares();
  void give_up();
  void publish();

  std::vector<std::unique_ptr<FileWriter>> files_;
  Options options_;
  comm::HostGroup& communicator_;
  State state_ = State::writing;
  WorkerThread worker_;
};

}  // namespace lockstep::checkpoint
