// Private to the module: writing the files of one step: each on its way from memory to its final name, and
// the save job, synchronous or during training, that moves them on.
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
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// The steps, in order: construction (collective); copy_share() (collective), if the tensors will change
/// before write_share() is over or needs_copy(); write_share(); complete() (collective), when all ranks have
/// written; publish(). write_share() and publish() call neither MPI nor HDF5, so any thread may, and touch
/// nothing but the files; their errors are of this rank alone. Several threads may be in write_share() at
/// once: they share the work.
///
/// The temporary file is removed at the end, unless it was published. Ranks that still write into it then
/// fail, or write into a file without a name.
class FileWriter {
 public:
  /// Lists and compares what ranks hold, lays the file out and shares the work. Errors: save_file.
  FileWriter(std::string path, const Contents& contents, comm::HostGroup& communicator, SaveOptions options);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  const std::string& path() const { return path_; }
  /// Some tensors cannot be written from where they are: partitioned ones, because a rank writes elements
  /// that other ranks hold, and those on a device. The same on every rank.
  bool needs_copy() const;
  /// Memory that copy_share() needs.
  std::uint64_t copy_bytes() const;
  /// Copies this rank's share into `memory`, which is written from there. Tensors in parts are gathered a few
  /// at a time; of others that are on a device this rank's share is copied from it.
  void copy_share(std::byte* memory);

  /// Writes, digests and syncs the rest of this rank's share. Other threads may still be writing when it
  /// returns.
  void write_share();
  /// Threads in write_share() stop after the segment that they are writing: the file is dropped.
  void give_up() { begun_ = segments_.size(); }
  /// Combines the digests and makes the structure. TrainingError if there were numbers that are not finite.
  void complete();
  /// On rank 0: adds the structure, syncs, gives the file its name and syncs the directory. Elsewhere
  /// nothing.
  void publish();

 private:
  /// An extent of this rank, and the rest of its last block behind it, which is digested only.
  struct OwnExtent {
    TensorExtent extent;
    const std::byte* data = nullptr;
    std::uint64_t readable_bytes = 0;
  };
  /// What is written at once: a block or, at an end of an extent, part of one.
  struct Segment {
    std::size_t extent = 0;
    std::uint64_t from = 0, bytes = 0;  ///< of the tensor
    std::uint64_t* digest = nullptr;    ///< of the block that begins here; none if it began before
  };

  template <class Use>
  void with_whole_tensors(const Use& use) const;
  void lay_out();
  void share_work(const Contents& contents);
  void cut_into_segments();
  void write(OpenFile& file, const Segment& segment);
  void note_not_finite(std::size_t tensor);
  void check_finite() const;

  std::string path_, temporary_;
  comm::HostGroup& communicator_;
  SaveOptions options_;
  kernels::Backend* backend_;  // of the tensors' device; none: the CPU
  FileIndex index_;
  std::unique_ptr<Layout> layout_;  // of rank 0
  std::vector<NamedTensor> held_;   // what extents are copied from or point to
  std::vector<OwnExtent> extents_;
  std::vector<std::uint64_t> digests_;  // of the blocks that begin in them
  std::vector<Segment> segments_;
  std::atomic<std::size_t> begun_{0}, done_{0};  // segments
  std::atomic<std::size_t>
      first_not_finite_;        // tensor, of those digested here; their number if there is none
  std::optional<Draft> draft_;  // of rank 0, until it is published
};

/// Runs one piece of work at a time on a second thread of low priority: while
/// cores are busy it takes what they leave. Used by one thread.
class WorkerThread {
 public:
  WorkerThread() = default;
  /// Waits for the work.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  /// Earlier work has ended. FailureError if there can be no thread.
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

  /// Earlier contents are lost.
  void reserve(std::uint64_t wanted_bytes);
};

/// The states of a save.
enum class SaveAction {
  proceed,  ///< the worker thread does the next state, if there is one
  wait,     ///< this thread does the next state
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

  /// Completes the present state on this rank, then on all. This thread helps a worker thread that is still
  /// busy, since worker threads have low priority. Collective. An error on any rank becomes the error of all,
  /// and the job cannot continue; FailureError for give_up.
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
