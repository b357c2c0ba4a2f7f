#include "lockstep/train/stop.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>
#include <utility>

#include "train/processes.h"
#include "train/signals.h"

namespace lockstep::train {
namespace {

// A signal handler reaches nothing else: the one place of process-wide state.
volatile std::sig_atomic_t preempt_signals = 0;
volatile std::sig_atomic_t interrupt_signals = 0;
volatile std::sig_atomic_t launcher_signals = 0;
volatile std::sig_atomic_t term_signals = 0;  // of others than the launcher
/// The processes above this one that launch ranks: the daemon of the node, perhaps behind a shell.
std::array<pid_t, 8> launchers{};

void on_preempt(int signal, siginfo_t* info, void*) {
  const bool from_launcher = signal == SIGTERM && info->si_code <= 0 && info->si_pid > 0 &&
                             std::find(launchers.begin(), launchers.end(), info->si_pid) != launchers.end();
  (from_launcher ? launcher_signals : preempt_signals) = 1;
  if (signal == SIGTERM && !from_launcher) term_signals = 1;
}

void on_interrupt(int signal, siginfo_t*, void*) {
  if (interrupt_signals) {  // a second Ctrl-C: now
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  interrupt_signals = 1;
}

constexpr std::array<std::pair<int, void (*)(int, siginfo_t*, void*)>, 3> handlers{
    {{SIGINT, on_interrupt}, {SIGTERM, on_preempt}, {SIGUSR2, on_preempt}}};

bool launches_ranks(std::string_view program) {
  constexpr std::array<std::string_view, 6> beginnings{"mpirun", "mpiexec", "orte", "prte", "prun", "hydra"};
  return std::ranges::any_of(beginnings,
                             [&](std::string_view beginning) { return program.starts_with(beginning); });
}

void find_launchers() {
  launchers = {};
  pid_t above = ::getppid();
  for (std::size_t found = 0; above > 1 && found < launchers.size(); above = parent_of(above)) {
    if (launches_ranks(name_of(above))) launchers[found++] = above;
  }
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

bool ended_by_launcher() { return launcher_signals != 0; }
bool told_to_end() { return term_signals != 0; }

StopRequests::StopRequests(std::string run_directory, bool watch_files)
    : stop_file_(run_directory + "/stop"),
      checkpoint_file_(run_directory + "/checkpoint"),
      watch_files_(watch_files) {
  preempt_signals = 0;
  interrupt_signals = 0;
  launcher_signals = 0;
  term_signals = 0;
  find_launchers();
  for (std::size_t i = 0; i < handlers.size(); ++i) {
    struct sigaction action {};
    action.sa_sigaction = handlers[i].second;
    action.sa_flags = SA_SIGINFO;
    install_handler(handlers[i].first, action, &before_[i]);
  }
}

StopRequests::~StopRequests() {
  for (std::size_t i = 0; i < handlers.size(); ++i) {
    const auto [signal, handler] = handlers[i];
    if (preempted_ && handler == on_preempt)
      std::signal(signal, SIG_IGN);
    else
      sigaction(signal, &before_[i], nullptr);
  }
}

Requests StopRequests::pending() const {
  return {.preempt = preempt_signals != 0,
          .user_stop = interrupt_signals != 0 || (watch_files_ && exists(stop_file_)),
          .checkpoint = watch_files_ && exists(checkpoint_file_)};
}

void StopRequests::clear(const Requests& obeyed) {
  preempted_ = preempted_ || obeyed.preempt;
  if (!watch_files_) return;
  if (obeyed.user_stop) unlink(stop_file_.c_str());
  if (obeyed.checkpoint) unlink(checkpoint_file_.c_str());
}

}  // namespace lockstep::train
