// Private to the module: the thread of each rank that ends a job in which a rank hangs, and names that rank.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "lockstep/comm/communicator.h"
#include "train/watch/hang_detector.h"
#include "train/watch/probes.h"
#include "train/watch/rank_status.h"

namespace lockstep::train {

/// Environment variable: the timeout of a program's default watchdog, in seconds; 0: none.
inline constexpr const char* hang_timeout_variable = "LOCKSTEP_HANG_TIMEOUT_S";

struct WatchOptions {
  double hang_timeout_s = 0;  ///< 0: no timeout
  bool signal_report = false;
  /// The default watchdog: a rank hangs only while another one waits for it, as a program may work alone for
  /// hours; signals are unchanged.
  bool by_default = false;
};

/// During its life, a thread watches the status of all ranks. It never calls MPI, and never waits for another
/// rank.
///
///  * A rank hangs if its process gives no sign of life, or if it makes no progress and does not wait for
///    others, for longer than hang_timeout_s. This ends the job. One rank of each connected part of the job
///    reports the rank, its position and time, and the ranks that wait. Every rank exits with code 5, even if
///    MPI hangs. A rank under a debugger is exempt, and time stops while the whole job is stopped.
///  * A rank of this node that dies is reported, and the launcher ends the job. The SIGTERM that Slurm then
///    sends to the other ranks is no longer a request to stop: they exit with code 5, on other nodes after
///    waiting for that rank for some seconds.
///  * If the launcher is gone, this rank exits.
///  * An asynchronous error of the transport ends the job, if the training thread does not notice it because
///    it waits for a device.
///  * With signal_report, SIGUSR1 prints where this rank is, with the stack of its training thread. Rank 0
///    prints where every rank is.
class Watchdog {
 public:
  /// Collective, on the training thread. One object at a time.
  Watchdog(comm::HostGroup& world, const WatchOptions& options);
  /// From now on watches by these options. On the training thread; not collective, but the same on every
  /// rank.
  void watch(const WatchOptions& options);
  /// Not collective; best after MPI has ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// nullptr: none. The previous transport may be destroyed when this returns, which takes bounded time even
  /// if that transport never answers.
  void watch_transport(const comm::GradientTransport* transport) { transport_probe_.watch(transport); }

 private:
  void stop();
  void run();
  void check();
  void obey_job_end();
  void exchange_status();
  void check_launcher();
  void check_transport();
  void observe_ranks();
  void report_deaths();
  void end_job_after_loss();
  void check_hangs();
  void report_unheard_nodes();
  void report_on_signal();

  void end_job(const std::string& text, const std::string& reason = "");
  [[noreturn]] void exit_process();

  bool sends_for_node() const;
  bool sees_process(int rank) const { return sees_pids_ && table_.is_local(rank); }
  bool is_ending(int rank) const;  ///< its program has returned or thrown
  bool is_waited_for(int rank) const;
  std::string name(int rank) const;
  std::string position(int rank) const;
  std::string waiting_ranks() const;

  WatchOptions options_;
  int rank_;
  std::vector<int> node_of_rank_;
  std::vector<std::string> host_names_;
  RankStatusTable table_;
  double interval_s_ = 0, heartbeat_interval_s_ = 0;
  HangDetector detector_;
  std::optional<StackProbe> stack_probe_;  // none by default
  TransportProbe transport_probe_;
  pid_t launcher_ = 0;  ///< the parent process; 0: no launcher started this process
  bool sees_pids_ = true;

  double now_s_ = 0;  ///< on a clock that stops while this process is stopped
  double last_check_s_, last_heartbeat_s_ = -1;
  double job_end_expected_s_ = -1, death_s_ = -1, transport_error_s_ = -1;  ///< since when; -1: not yet
  bool reported_unheard_ = false;
  std::optional<StopEvent> stop_;  // of the thread
  std::thread thread_;
};

}  // namespace lockstep::train
