// Session: what a program that trains has at hand from start to end, and run(), which gives every rank the
// same end.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"

namespace lockstep {

namespace train {
class Watchdog;
}

struct DeviceOptions {
  int threads = 1;            ///< per operation, on a CPU
  bool reproducible = false;  ///< on GPUs: sums along the tree
  bool sums = true;           ///< gradients are to be summed: without, ranks may share GPUs
};

/// MPI (if this process was started as a rank), the device and the log. Made by run().
class Session {
 public:
  /// `watchdog` is kept for watch(); it outlives MPI.
  Session(comm::CpuCommunicator& world, std::unique_ptr<train::Watchdog>& watchdog)
      : world_(world), log_(world.rank()), watchdog_(watchdog) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  comm::HostGroup& world() const { return world_; }
  const Log& log() const { return log_; }
  /// The device's backend: the CPU's with one thread, unless use_device() or use_backend() came before.
  kernels::Backend& backend();
  /// Collective, and before anything is made with backend() or transport(): from now on they are of the
  /// device asked for: "cpu", "cuda" (on each rank the GPU of its place on its machine), or "auto" (a GPU if
  /// this build can use it and every rank has one). Says what auto came to where it is not plain. UsageError,
  /// the same on every rank, if there is no such device for some rank.
  void use_device(const std::string& asked, const DeviceOptions& options = {});
  /// The same for a device chosen already. Collective if it is a GPU.
  void use_backend(Device device, const DeviceOptions& options = {});
  /// DataParallel sums gradients through it: between CPUs, or between GPUs after use_device().
  comm::GradientTransport& transport() const {
    if (transport_) return *transport_;
    return world_;
  }
  /// Collective: from now to the end of the process, a rank without progress for longer than hang_timeout_s
  /// (0: never) ends the job on every rank with exit code 5 and a report of who and where. signal_report:
  /// SIGUSR1 prints where each rank is, with its stack. Best before use_device(): between GPUs no rank waits
  /// longer inside a call of NCCL, either.
  void watch(double hang_timeout_s, bool signal_report);

 private:
  void drop_transport();

  comm::CpuCommunicator& world_;
  Log log_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<comm::GradientTransport> transport_;  // on GPUs; works with the backend
  std::unique_ptr<train::Watchdog>& watchdog_;
  std::optional<double> hang_timeout_s_;  // since watch()
};

/// What MPI may take to start, in seconds, unless said otherwise: fault.hang_timeout_s.
inline constexpr double default_start_timeout_s = 300;

/// run() for a program that returns how it ended. start_timeout_s: a start of MPI that takes longer (a rank
/// is missing, say) ends the job with exit code 5; 0: never.
int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program,
                double start_timeout_s = default_start_timeout_s);

/// Runs program(session) on every rank and returns the exit code for main: what the program returns (an
/// ExitCode), or 0 if it returns nothing.
///
/// Standard streams that are closed or that nobody reads do no harm (base/streams.h).
///
/// An exception ends the program with one line on standard error and the error's code (5 for one that is not
/// a lockstep::Error). If it was thrown on every rank, rank 0 says it once; if only some ranks threw, they
/// say it with their rank and the world is ended through MPI_Abort, since the others may be waiting.
template <class Program>
int run(int argc, char** argv, Program&& program, double start_timeout_s = default_start_timeout_s) {
  const auto ends_with = [&](Session& session) {
    if constexpr (std::is_void_v<std::invoke_result_t<Program&, Session&>>) {
      program(session);
      return ExitCode::done;
    } else {
      return program(session);
    }
  };
  return run_program(argc, argv, ends_with, start_timeout_s);
}

}  // namespace lockstep
