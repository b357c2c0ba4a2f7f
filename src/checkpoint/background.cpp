#include "checkpoint/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "lockstep/base/quiet_thread.h"
#include "lockstep/base/whereabouts.h"

namespace lockstep::checkpoint {
namespace {

/// On Linux a thread has a nice value of its own.
void give_way() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19); }

}  // namespace

Background::~Background() {
  if (thread_.joinable()) thread_.join();
}

void Background::start(std::function<void()> work) {
  if (thread_.joinable()) thread_.join();
  error_ = nullptr;
  waited_for_ = false;
  running_ = true;
  try {
    thread_ = start_quiet_thread("a save beside training", [this, work = std::move(work)] {
      give_way();
      whereabouts::waited_for = &waited_for_;
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

bool Background::running() const { return running_; }

bool Background::failed() const { return !running_ && error_ != nullptr; }

void Background::finish() {
  waited_for_ = true;
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace lockstep::checkpoint
