#include "train/transport_probe.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/thread.h"

namespace lockstep::train {

/// The thread has it in its hands, too: it may come back when all else is gone.
struct TransportProbe::Shared {
  std::mutex in_use;  ///< of the transport
  std::atomic<const comm::GradientTransport*> transport{nullptr};
  std::mutex telling;  ///< guards `error` and `over`
  std::string error;
  std::condition_variable rest;
  bool over = false;
  std::atomic<std::uint64_t> turns{0};
};

TransportProbe::TransportProbe(double every_s, double patience_s)
    : every_s_(every_s), patience_s_(patience_s), shared_(std::make_shared<Shared>()) {}

TransportProbe::~TransportProbe() {
  if (!thread_.joinable()) return;
  if (const auto lock = try_lock_for(shared_->in_use, patience_s_)) shared_->transport = nullptr;
  if (shared_->transport) {  // it is still being asked
    leave_behind();
    return;
  }
  {
    const std::lock_guard lock(shared_->telling);
    shared_->over = true;
  }
  shared_->rest.notify_all();
  thread_.join();  // with nobody to ask it cannot be held up
}

void TransportProbe::look_after(const comm::GradientTransport* transport) {
  if (!transport && !thread_.joinable()) return;
  if (thread_.joinable()) {
    if (const auto lock = try_lock_for(shared_->in_use, patience_s_)) {
      shared_->transport = transport;
      const std::lock_guard told(shared_->telling);
      shared_->error.clear();  // of the one before
      return;
    }
    leave_behind();
    if (!transport) return;
  }
  shared_->transport = transport;
  start();
}

std::string TransportProbe::error() const {
  const std::shared_ptr<Shared> now = shared();
  const std::lock_guard lock(now->telling);
  return now->error;
}

std::uint64_t TransportProbe::turns() const { return shared()->turns; }

std::shared_ptr<TransportProbe::Shared> TransportProbe::shared() const {
  const std::lock_guard lock(changing_);
  return shared_;
}

void TransportProbe::start() {
  thread_ = start_background_thread("the watch over the transport",
                                    [shared = shared_, every_s = every_s_] { ask(*shared, every_s); });
}

void TransportProbe::leave_behind() {
  {
    const std::lock_guard lock(shared_->telling);
    shared_->over = true;
  }
  thread_.detach();
  auto next = std::make_shared<Shared>();
  const std::lock_guard lock(changing_);
  shared_.swap(next);
}

void TransportProbe::ask(Shared& shared, double every_s) {
  for (;;) {
    {
      const std::lock_guard lock(shared.in_use);
      const comm::GradientTransport* const transport = shared.transport;
      std::string error = transport ? transport->async_error() : std::string();
      const std::lock_guard told(shared.telling);
      shared.error = std::move(error);
    }
    ++shared.turns;
    std::unique_lock lock(shared.telling);
    if (shared.rest.wait_for(lock, std::chrono::duration<double>(every_s), [&] { return shared.over; }))
      return;
  }
}

}  // namespace lockstep::train
