// Private to the module: the writer of one file, and the save job that writes the files of one step, possibly
// during training.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/output.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Writes one file, from memory to its final name. The steps, in order: construction (collective);
/// copy_share() (collective), if needs_copy() or if the tensors will change before write_share() returns;
/// write_share(); complete() (collective), when all ranks have written; publish(). write_share() and
/// publish() call neither MPI nor HDF5, so any thread may call them; their errors are of this rank alone.
/// Several threads may be in write_share() at once: they share the work.
///
/// The destructor removes the temporary file unless it was published. Ranks that are still writing into it
/// then fail, or write into a file without a name.
class FileWriter {
 public:
  /// Compares the ranks' state dicts, plans the layout and divides the work. Errors: save_file.
  FileWriter(std::string path, const StateDict& state_dict, comm::HostGroup& world, SaveOptions options);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  const std::string& path() const { return path_; }
  /// True if some tensors cannot be written from their own memory: partitioned ones, because a rank writes
  /// elements that other ranks hold, and those on a device. The same on every rank.
  bool needs_copy() const;
  /// Memory that copy_share() needs.
  std::uint64_t copy_bytes() const;
  /// Copies this rank's share into `memory`; write_share() then writes from there. Gathers partitioned
  /// tensors a few at a time.
  void copy_share(std::byte* memory);

  /// Digests, writes and syncs the rest of this rank's share. Other threads may still be writing when it
  /// returns.
  void write_share();
  /// Drops the file: threads in write_share() stop after their current segment.
  void give_up() { begun_ = segments_.size(); }
  /// Combines the digests and completes the structure. TrainingError if some numbers are not finite.
  void complete();
  /// On rank 0: writes the structure, syncs, renames the file and syncs the directory. No-op elsewhere.
  void publish();

 private:
  /// An extent of this rank, followed by the rest of its last block, which is digested but not written.
  struct OwnExtent {
    TensorExtent extent;
    const std::byte* data = nullptr;
    std::uint64_t readable_bytes = 0;
  };
  /// The bytes of one write: a block or, at an end of an extent, part of one.
  struct Segment {
    std::size_t extent = 0;
    std::uint64_t from = 0, bytes = 0;  ///< of the tensor
    std::uint64_t* digest = nullptr;    ///< of the block that begins here; null if it began before
  };

  template <class Use>
  void with_whole_tensors(const Use& use) const;
  void lay_out();
  void share_work(const StateDict& state_dict);
  void cut_into_segments();
  void write(OpenFile& file, const Segment& segment);
  void note_not_finite(std::size_t tensor);
  void check_finite() const;

  std::string path_, temporary_;
  double draft_delay_s_;  // until this rank sees it
  comm::HostGroup& world_;
  SaveOptions options_;
  kernels::Backend* backend_;  // of the tensors' device; null: the CPU
  FileIndex index_;
  std::unique_ptr<Layout> layout_;  // of rank 0
  std::vector<NamedTensor> held_;   // memory that extents copy from or point to
  std::vector<OwnExtent> extents_;
  std::vector<std::uint64_t> digests_;  // of the blocks that begin in them
  std::vector<Segment> segments_;
  std::atomic<std::size_t> begun_{0}, done_{0};  // segments
  std::atomic<std::size_t>
      first_not_finite_;        // first non-finite tensor of this rank; number of tensors if none
  std::optional<Draft> draft_;  // of rank 0, until it is published
};

/// Runs one function at a time on a second thread of low priority, which uses idle time of cores. For one
/// thread.
class WorkerThread {
 public:
  WorkerThread() = default;
  /// Waits for the work.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  /// Only after earlier work has ended. FailureError if the thread cannot start.
  void start(std::function<void()> work);
  bool running() const { return running_; }
  /// The work has thrown, and finish() has not rethrown it yet.
  bool failed() const { return !running_ && error_ != nullptr; }
  /// Waits for the work, and rethrows its exception once.
  void finish();

 private:
  std::thread thread_;
  std::atomic<bool> running_{false};
  std::atomic<bool> waited_for_{false};
  std::exception_ptr error_;  // the thread's while it runs
};

/// Memory for the copies of ranks' shares, reused by the next save.
struct SaveMemory {
  std::unique_ptr<std::byte[]> data;
  std::uint64_t bytes = 0;

  /// Loses the old contents.
  void reserve(std::uint64_t min_bytes);
};

/// How a save job advances to its next state.
enum class SaveAction {
  proceed,  ///< on the worker thread, if there is one
  wait,     ///< on this thread
  give_up,
};

/// Saves a checkpoint, or a profile snapshot and a checkpoint. Every rank writes its share of them; then rank
/// 0 publishes them in order, so that a reader that sees the last sees all.
/// The destructor of an incomplete job drops it and removes its temporary files.
class SaveJob {
 public:
  enum class State {
    writing,     ///< worker threads write the ranks' shares, or advance() will
    written,     ///< all shares are on storage; advance() publishes
    publishing,  ///< rank 0's worker thread publishes
    done,
  };
  struct Options {
    bool async = false;                     ///< worker threads write from copies of the shares
    std::function<void()> check_may_write;  ///< as SaveOptions::check_may_write
    std::function<void()> published;        ///< on rank 0, once the files have their names; calls no MPI
  };

  /// Copies this rank's shares into `memory` if the job is asynchronous or a file needs it. `memory` and
  /// the world outlive the job. Collective.
  SaveJob(std::vector<std::unique_ptr<FileWriter>> files, Options options, SaveMemory& memory,
          comm::HostGroup& world);
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  State state() const { return state_; }
  const std::string& path() const { return files_.back()->path(); }  ///< of the checkpoint
  bool running() const { return worker_.running(); }                 ///< this rank's worker thread
  bool failed() const { return worker_.failed(); }

  /// Completes the current state on all ranks. This thread helps a busy worker thread, which has low
  /// priority. Collective. An error on any rank becomes the error of all, and the job cannot continue;
  /// FailureError for give_up.
  void advance(SaveAction action);

 private:
  void copy_shares(SaveMemory& memory);
  void write_shares();
  void give_up();
  void publish();

  std::vector<std::unique_ptr<FileWriter>> files_;
  Options options_;
  comm::HostGroup& world_;
  State state_ = State::writing;
  WorkerThread worker_;
};

}  // namespace lockstep::checkpoint
