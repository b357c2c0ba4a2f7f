// Facts from /proc about other processes of this node, and handlers of the signals that they send.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>

namespace lockstep::train {

struct ProcessState {
  char letter = 0;      ///< R, S, D, T (stopped), Z (ended, not collected) ...; 0: no such process
  bool traced = false;  ///< by a debugger
  bool gone() const { return letter == 0 || letter == 'Z' || letter == 'X'; }
};

/// These two do not allocate.
ProcessState state_of(pid_t pid);
const char* describe(ProcessState state);

pid_t parent_of(pid_t pid);  ///< 0: unknown
/// The name of the program, also of one that a bundle's loader runs; empty if unknown.
std::string name_of(pid_t pid);
/// The nearest process above `pid` that launches ranks: mpirun, or the daemon of the node; 0: none.
pid_t launcher_above(pid_t pid);

/// Installs a handler that runs on an alternate stack of the calling thread, which trains; interrupted calls
/// are restarted. oneDNN's matrix product (2.6.3, dnnl_sgemm) keeps data further below the stack pointer than
/// a handler on the usual stack spares, which would corrupt memory.
void install_handler(int signal, struct sigaction action, struct sigaction* previous = nullptr);

/// During its life, SIGTERM and SIGUSR2 do not end the process: they are requests for the next StopRequests.
/// SIGUSR1 is ignored from then on. The program's own handlers stay.
class HeldSignals {
 public:
  explicit HeldSignals(bool wanted = true);
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  /// For a program without StopRequests: held signals get their default action now.
  static void release();

 private:
  bool holds_ = false;
};

}  // namespace lockstep::train
