#include "train/probes.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/thread.h"
#include "train/signals.h"

namespace lockstep::train {
namespace {

constexpr int max_frames = 64;
constexpr double stack_timeout_s = 0.5;

// Global, as a signal handler can reach nothing else.
std::array<void*, max_frames> frames;
std::atomic<int> frames_taken{-1};

int stack_signal() { return SIGRTMIN + 5; }

void on_stack_signal(int) {
  const int error = errno;
  frames_taken.store(::backtrace(frames.data(), max_frames), std::memory_order_release);
  errno = error;
}

std::string describe(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) return fmt::format("{}", address);
  const auto offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  const std::string location = fmt::format("{}+{:#x}", info.dli_fname, offset);
  if (!info.dli_sname) return location;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  return fmt::format("{} ({})", status == 0 ? name.get() : info.dli_sname, location);
}

}  // namespace

StackProbe::StackProbe() : thread_(pthread_self()) {
  ::backtrace(frames.data(), max_frames);  // loads what it needs here, not in the handler
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  install_handler(stack_signal(), action);
}

StackProbe::~StackProbe() { std::signal(stack_signal(), SIG_IGN); }

std::string StackProbe::take() const {
  frames_taken.store(-1);
  if (::pthread_kill(thread_, stack_signal()) != 0) return "  (no stack: the thread has ended)\n";
  constexpr timespec millisecond{0, 1'000'000};
  for (int i = 0; frames_taken.load(std::memory_order_acquire) < 0; ++i) {
    if (i * 1e-3 > stack_timeout_s) return "  (no stack: the thread does not answer signals)\n";
    ::nanosleep(&millisecond, nullptr);
  }
  std::string text;
  constexpr int own_frames = 2;  // the handler, and what the system put below it
  for (int i = own_frames; i < frames_taken.load(); ++i)
    text += fmt::format("  #{} {}\n", i - own_frames, describe(frames[static_cast<std::size_t>(i)]));
  return text;
}

struct TransportProbe::Questions {
  std::mutex mutex;  // not held while the transport is asked
  std::condition_variable changed;
  std::string error;
  bool stop = false, ended = false;

  void ask(const comm::GradientTransport& transport, double interval_s) {
    std::unique_lock lock(mutex);
    while (!stop) {
      lock.unlock();
      std::string answer = transport.async_error();
      lock.lock();
      error = std::move(answer);
      changed.wait_for(lock, std::chrono::duration<double>(interval_s), [this] { return stop; });
    }
    ended = true;
    changed.notify_all();
  }
};

void TransportProbe::watch(const comm::GradientTransport* transport) {
  stop();
  if (!transport) return;
  const auto questions = std::make_shared<Questions>();
  thread_ = start_background_thread(
      "the watchdog of the transport",
      [questions, transport, interval_s = interval_s_] { questions->ask(*transport, interval_s); });
  const std::lock_guard lock(mutex_);
  questions_ = questions;
}

std::string TransportProbe::error() const {
  const std::lock_guard lock(mutex_);
  if (!questions_) return {};
  const std::lock_guard answer_lock(questions_->mutex);
  return questions_->error;
}

void TransportProbe::stop() {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    std::unique_lock lock(questions_->mutex);
    questions_->stop = true;
    questions_->changed.notify_all();
    ended = questions_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s_),
                                         [this] { return questions_->ended; });
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
  const std::lock_guard lock(mutex_);
  questions_.reset();
}

}  // namespace lockstep::train
