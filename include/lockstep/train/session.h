// Session: what a program that trains has at hand from start to end, and run(), which gives every rank the
// same end.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

namespace train {
class Watchdog;
}

/// MPI (if this process was started as a rank), the device and the log. Made by run().
class Session {
 public:
  /// `watchdog` is kept for watch(); it outlives MPI.
  Session(comm::Communicator& world, std::unique_ptr<train::Watchdog>& watchdog)
      : world_(world), log_(world.rank()), watchdog_(watchdog) {}

  comm::Communicator& world() const { return world_; }
  const Log& log() const { return log_; }
  /// The device's backend: the CPU's with one thread, unless use_backend() came before.
  kernels::Backend& backend();
  void use_backend(Device device, int threads) { backend_ = kernels::make_backend(device, threads); }
  /// Collective: from now to the end of the process, a rank without progress for longer than hang_timeout_s
  /// (0: never) ends the job on every rank with exit code 5 and a report of who and where. signal_report:
  /// SIGUSR1 prints where each rank is, with its stack.
  void watch(double hang_timeout_s, bool signal_report);

 private:
  comm::Communicator& world_;
  Log log_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<train::Watchdog>& watchdog_;
};

/// run() for a program that returns how it ended.
int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program);

/// Runs program(session) on every rank and returns the exit code for main: what the program returns (an
/// ExitCode), or 0 if it returns nothing.
///
/// An exception ends the program with one line on standard error and the error's code (5 for one that is not
/// a lockstep::Error). If it was thrown on every rank, rank 0 says it once; if only some ranks threw, they
/// say it with their rank and the world is ended through MPI_Abort, since the others may be waiting.
template <class Program>
int run(int argc, char** argv, Program&& program) {
  return run_program(argc, argv, [&](Session& session) {
    if constexpr (std::is_void_v<std::invoke_result_t<Program&, Session&>>) {
      program(session);
      return ExitCode::done;
    } else {
      return program(session);
    }
  });
}

}  // namespace lockstep
