#include "checkpoint/save_job.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/progress.h"
#include "base/thread.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

/// A run that takes a directory over removes drafts: what fails then on any rank, in whatever way, has that
/// for its reason, and the error of check() on rank 0 is that of all. Collective.
void together_if_writable(comm::HostGroup& communicator, const std::function<void()>& check,
                          const std::function<void()>& action) {
  const bool checks = check && communicator.rank() == 0;
  comm::run_on_all(communicator, [&] {
    try {
      action();
    } catch (const std::exception&) {
      if (checks) check();
      throw;
    }
    if (checks) check();  // another rank's part may have failed
  });
}

}  // namespace

WorkerThread::~WorkerThread() {
  if (thread_.joinable()) thread_.join();
}

void WorkerThread::start(std::function<void()> work) {
  if (thread_.joinable()) thread_.join();
  error_ = nullptr;
  waited_for_ = false;
  running_ = true;
  try {
    thread_ = start_background_thread("a save beside training", [this, work = std::move(work)] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);  // on Linux of this thread alone
      progress::waited_for = &waited_for_;
      try {
        work();
      } catch (...) {
        error_ = std::current_exception();
      }
      running_ = false;
    });
  } catch (...) {
    running_ = false;
    throw;
  }
}

void WorkerThread::finish() {
  waited_for_ = true;
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void SaveMemory::reserve(std::uint64_t wanted_bytes) {
  if (wanted_bytes <= bytes) return;
  bytes = 0;
  data.reset();
  data = std::make_unique_for_overwrite<std::byte[]>(wanted_bytes);
  bytes = wanted_bytes;
}

SaveJob::SaveJob(std::vector<std::unique_ptr<FileWriter>> files, Options options, SaveMemory& memory,
                 comm::HostGroup& communicator)
    : files_(std::move(files)), options_(std::move(options)), communicator_(communicator) {
  if (options_.async || std::ranges::any_of(files_, [](const auto& file) { return file->needs_copy(); }))
    copy_shares(memory);
  if (!options_.async) return;
  try {
    comm::run_on_all(communicator_, [&] { worker_.start([this] { write_shares(); }); });
  } catch (...) {  // another rank has no thread: do not write what nobody wants
    give_up();
    throw;
  }
}

SaveJob::~SaveJob() { give_up(); }

/// Changes nothing about shares that are written.
void SaveJob::give_up() {
  for (const auto& file : files_) file->give_up();
}

void SaveJob::copy_shares(SaveMemory& memory) {
  std::uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file->copy_bytes();
  comm::run_on_all(communicator_, [&] { memory.reserve(bytes); });
  std::byte* to = memory.data.get();
  for (const auto& file : files_) {
    file->copy_share(to);
    to += file->copy_bytes();
  }
}

void SaveJob::write_shares() {
  for (const auto& file : files_) file->write_share();
}

/// On rank 0; perhaps during training, so it calls neither MPI nor HDF5.
void SaveJob::publish() {
  for (const auto& file : files_) file->publish();
  options_.published();
}

void SaveJob::advance(SaveAction action) {
  const bool publishes = communicator_.rank() == 0;
  together_if_writable(communicator_, options_.check_may_write, [&] {
    if (action == SaveAction::give_up) {
      give_up();
    } else if (state_ == State::writing && !worker_.failed()) {
      write_shares();
    } else if (state_ == State::written && publishes) {
      publish();
    }
    worker_.finish();
  });
  if (action == SaveAction::give_up) throw FailureError("{}: was given up", path());
  if (state_ != State::writing) {
    state_ = State::done;
    return;
  }
  for (const auto& file : files_) file->complete();
  state_ = State::written;
  if (!options_.async || action != SaveAction::proceed) return;
  comm::run_on_all(communicator_, [&] {
    if (publishes) worker_.start([this] { publish(); });
  });
  state_ = State::publishing;
}

}  // namespace lockstep::checkpoint
