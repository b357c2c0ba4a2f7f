#include "lockstep/train/stop.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "lockstep/base/log.h"
#include "train/watch/processes.h"

namespace lockstep::train {
namespace {

// Global, as a signal handler has no other access.
volatile std::sig_atomic_t preempt_received = 0, interrupt_received = 0;
volatile std::sig_atomic_t term_received = 0, launcher_term_received = 0;
bool held = false;  // arrived signals wait for the next StopRequests
/// Ancestors of this process that launch ranks: the daemon of the node, possibly with a shell in between.
std::array<pid_t, 8> launchers{};

void on_preempt(int signal, siginfo_t* info, void*) {
  const bool from_launcher = signal == SIGTERM && info->si_code <= 0 && info->si_pid > 0 &&
                             std::find(launchers.begin(), launchers.end(), info->si_pid) != launchers.end();
  (from_launcher ? launcher_term_received : preempt_received) = 1;
  if (signal == SIGTERM && !from_launcher) term_received = 1;
}

void on_interrupt(int signal, siginfo_t*, void*) {
  if (interrupt_received) {  // the second Ctrl-C ends the process at once
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupt_received = 1;
}

constexpr std::array<std::pair<int, void (*)(int, siginfo_t*, void*)>, 3> handlers{
    {{SIGINT, on_interrupt}, {SIGTERM, on_preempt}, {SIGUSR2, on_preempt}}};

void find_launchers() {
  pid_t process = ::getpid();
  for (pid_t& launcher : launchers) launcher = process = process > 0 ? launcher_above(process) : 0;
}

/// Drops earlier signals, unless they were held for this object.
void begin_to_listen(bool holds) {
  if (!std::exchange(held, holds))
    for (volatile std::sig_atomic_t* const flag :
         {&preempt_received, &interrupt_received, &term_received, &launcher_term_received})
      *flag = 0;
  find_launchers();
}

void install(std::size_t index, struct sigaction* previous) {
  struct sigaction action {};
  action.sa_sigaction = handlers[index].second;
  action.sa_flags = SA_SIGINFO;
  install_handler(handlers[index].first, action, previous);
}

struct sigaction action_of(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

HeldSignals::HeldSignals(bool wanted) {
  if (!wanted) return;
  if (action_of(SIGUSR1).sa_handler == SIG_DFL) std::signal(SIGUSR1, SIG_IGN);
  for (std::size_t i = 0; i < handlers.size(); ++i) {
    if (handlers[i].second != on_preempt || action_of(handlers[i].first).sa_handler != SIG_DFL) continue;
    holds_ = true;
    begin_to_listen(holds_);
    install(i, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  for (const auto& [signal, handler] : handlers)
    if (holds_ && action_of(signal).sa_sigaction == on_preempt) std::signal(signal, SIG_DFL);
}

void HeldSignals::release() {
  if (!std::exchange(held, false) || !(preempt_received || launcher_term_received)) return;
  std::raise(term_received || launcher_term_received ? SIGTERM : SIGUSR2);
}

std::optional<ExitCode> exit_code(const ddp::Requests& obeyed) {
  if (obeyed.stop_preempted) return ExitCode::preempted;
  if (obeyed.stop_user) return ExitCode::user_stopped;
  return std::nullopt;
}

bool StopRequests::terminated_by_launcher() { return launcher_term_received != 0; }
bool StopRequests::sigterm_received() { return term_received != 0; }

StopRequests::StopRequests(std::string run_directory, bool watch_files)
    : stop_file_(run_directory + "/stop"),
      checkpoint_file_(run_directory + "/checkpoint"),
      watch_files_(watch_files) {
  begin_to_listen(false);
  for (std::size_t i = 0; i < handlers.size(); ++i) install(i, &previous_[i]);
}

StopRequests::~StopRequests() {
  for (std::size_t i = 0; i < handlers.size(); ++i) {
    const auto [signal, handler] = handlers[i];
    if (preempted_ && handler == on_preempt)
      std::signal(signal, SIG_IGN);
    else
      ::sigaction(signal, &previous_[i], nullptr);
  }
}

ddp::Requests StopRequests::pending() const {
  return {.stop_preempted = preempt_received != 0,
          .stop_user = interrupt_received != 0 || (watch_files_ && exists(stop_file_)),
          .checkpoint = watch_files_ && exists(checkpoint_file_)};
}

void StopRequests::clear(const ddp::Requests& obeyed) {
  preempted_ = preempted_ || obeyed.stop_preempted;
  if (!watch_files_) return;
  for (const auto& [done, file] :
       {std::pair(obeyed.stop_user, &stop_file_), {obeyed.checkpoint, &checkpoint_file_}})
    if (done && ::unlink(file->c_str()) != 0 && errno != ENOENT)
      Log().warning("{}: cannot be removed: {}; until it is, it is a request again", *file,
                    std::strerror(errno));
}

}  // namespace lockstep::train
