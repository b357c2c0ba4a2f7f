// Session: the world, the device and the log of a program that trains; and run(), which ends it with the same
// exit code on every rank.
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
#include "lockstep/kernels/context.h"

namespace lockstep {

namespace train {
class Watchdog;
}

/// Options of a device.
struct DeviceOptions {
  int threads = 1;            ///< per operation, on a CPU
  bool reproducible = false;  ///< on GPUs: sums follow the tree
  bool sums = true;           ///< whether gradients are summed; otherwise ranks may share GPUs
};

/// MPI (if a launcher started this process as a rank), the device, the log and the shape of the run
/// (Context::set_run). run() constructs it.
class Session final : public Context {
 public:
  /// `watchdog` is where watch() puts its object, which outlives MPI.
  Session(comm::CpuCommunicator& world, std::unique_ptr<train::Watchdog>& watchdog)
      : world_(world), log_(world.rank()), watchdog_(watchdog) {}
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  comm::CpuCommunicator& world() const override { return world_; }
  const Log& log() const { return log_; }  ///< of this rank: others than rank 0 write warnings only
  /// The backend of the device: a CPU with one thread, unless use_device() or use_backend() was called.
  kernels::Backend& backend() override;
  /// Chooses the device of backend() and transport(): "cpu", "cuda" (each rank takes the GPU with its number
  /// on its node), or "auto" (GPUs if this build can use them and every rank has one). Collective; call it
  /// before any use of backend() or transport() (UsageError after backend()). Logs the choice unless it is
  /// obvious. Throws the same UsageError on every rank if some rank has no such device.
  void use_device(const std::string& asked, const DeviceOptions& options = {});
  /// The same for a known device. Collective for a GPU.
  void use_backend(Device device, const DeviceOptions& options = {});
  /// The transport for the gradients of DataParallel: between CPUs, or between GPUs after use_device().
  comm::GradientTransport& transport() const override {
    if (transport_) return *transport_;
    return world_;
  }
  /// From now to the end of the process, a rank without progress for longer than hang_timeout_s (0: no limit)
  /// ends the job on every rank with exit code 5, and is reported with its position. signal_report: SIGUSR1
  /// prints where each rank is, with its stack. Collective. Best before use_device(): the timeout then also
  /// limits how long a rank waits inside NCCL.
  /// Without this call the rules of run() apply: a rank's own work may take any time while no other rank
  /// waits for it.
  void watch(double hang_timeout_s, bool signal_report = false);
  /// run() calls it after the report of a failure of all ranks, while they wait for it. Must not throw.
  std::function<void()> after_failure;

 private:
  friend int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program,
                         double start_timeout_s);
  void watch_by_default(double hang_timeout_s);
  void drop_transport();

  comm::CpuCommunicator& world_;
  Log log_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<comm::GradientTransport> transport_;  // between GPUs; uses the backend
  std::unique_ptr<train::Watchdog>& watchdog_;
  std::optional<double> hang_timeout_s_;  // since watch()
};

/// The limit for the start of MPI and for the waits of ranks, in seconds: the default of
/// fault.hang_timeout_s.
inline constexpr double default_start_timeout_s = 300;

/// run() for a program that returns its exit code. If MPI takes longer than start_timeout_s to start (for
/// example, because a rank is missing), the job ends with exit code 5; 0: no limit.
///
/// The job also ends with exit code 5, and a report of where each rank is, if a rank waits for others longer
/// than that (or than LOCKSTEP_HANG_TIMEOUT_S in the environment; 0: no limit), and one of them makes no
/// progress, or all wait. A rank that nobody waits for may work for any time. Session::watch() sets other
/// rules.
int run_program(int argc, char** argv, const std::function<ExitCode(Session&)>& program,
                double start_timeout_s = default_start_timeout_s);

/// Runs program(session) on every rank and returns the exit code for main: what the program returns (an
/// ExitCode), or 0 if it returns nothing.
///
/// An exception ends the program with one line on standard error and the code of the error (5 if it is not a
/// lockstep::Error). If every rank throws, rank 0 prints the line once. If only some ranks throw, they print
/// it with their rank and end the world through MPI_Abort, as the other ranks may wait for them.
/// Closed standard streams, and streams without a reader, are safe (base/streams.h).
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
