#include "checkpoint/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace lockstep::checkpoint {
namespace {

/// On Linux a thread has a nice value of its own.
void give_way() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19); }

}  // namespace

void Background::start(std::function<void()> work) {
  error_ = nullptr;
  work_ = std::async(std::launch::async, [work = std::move(work)] {
    give_way();
    work();
  });
}

bool Background::running() const {
  return work_.valid() && work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

bool Background::failed() {
  if (!running()) collect();
  return error_ != nullptr;
}

void Background::finish() {
  collect();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

/// Waits for the work and keeps what it threw.
void Background::collect() {
  if (!work_.valid()) return;
  try {
    work_.get();
  } catch (...) {
    error_ = std::current_exception();
  }
}

}  // namespace lockstep::checkpoint
