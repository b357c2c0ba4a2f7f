#include "lockstep/train/stop.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

namespace lockstep::train {
namespace {

// A signal handler reaches nothing else: the one place of process-wide state.
volatile std::sig_atomic_t preempt_signals = 0;
volatile std::sig_atomic_t interrupt_signals = 0;

void on_preempt(int) { preempt_signals = 1; }

void on_interrupt(int signal) {
  if (interrupt_signals) {  // a second Ctrl-C: now
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupt_signals = 1;
}

constexpr std::array<std::pair<int, void (*)(int)>, 3> handlers{
    {{SIGINT, on_interrupt}, {SIGTERM, on_preempt}, {SIGUSR2, on_preempt}}};

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

StopRequests::StopRequests(std::string run_directory, bool watch_files)
    : stop_file_(run_directory + "/stop"),
      checkpoint_file_(run_directory + "/checkpoint"),
      watch_files_(watch_files) {
  preempt_signals = 0;
  interrupt_signals = 0;
  for (const auto& [signal, handler] : handlers) install(signal, handler);
}

StopRequests::~StopRequests() {
  for (const auto& [signal, handler] : handlers) install(signal, SIG_DFL);
}

Requests StopRequests::pending() const {
  return {.preempt = preempt_signals != 0,
          .user_stop = interrupt_signals != 0 || (watch_files_ && exists(stop_file_)),
          .checkpoint = watch_files_ && exists(checkpoint_file_)};
}

void StopRequests::clear(const Requests& obeyed) {
  if (!watch_files_) return;
  if (obeyed.user_stop) unlink(stop_file_.c_str());
  if (obeyed.checkpoint) unlink(checkpoint_file_.c_str());
}

}  // namespace lockstep::train
