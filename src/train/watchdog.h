// Private to the module: the thread of each rank that ends a job in which a rank hangs, and says who.
#pragma once

#include <semaphore.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "train/board.h"
#include "train/hang_judge.h"
#include "train/heartbeat.h"
#include "train/stack.h"
#include "train/transport_probe.h"

namespace lockstep::train {

struct WatchOptions {
  double hang_timeout_s = 0;  ///< 0: nobody is ended for being slow
  bool signal_report = false;
};

/// From its construction on every rank can see where all others are (Board), and a thread that calls neither
/// MPI nor anything that waits for a rank looks at them.
///
///  * A rank whose process gives no sign of life, or that waits for nobody and gets no further, for longer
///    than hang_timeout_s, ends the job: one rank of each part of the job that still hears of itself says
///    who, where and since when, and who waits, and every rank leaves with exit code 5, whatever MPI is
///    doing. A rank held by a debugger is left alone, and while a whole job is stopped nothing counts.
///  * A rank of this node that dies is named; the launcher ends the job. SIGTERM, which Slurm then sends to
///    the others, is no request to stop any more: they leave with exit code 5, those of other nodes when they
///    have waited for that rank in vain for some seconds.
///  * If the launcher is gone, this rank leaves as well.
///  * What a transport finds broken while its rank waits for a device, where nobody asks it, ends the job.
///  * With signal_report, SIGUSR1 prints where this rank is, with the stack of its thread that trains; rank 0
///    prints where every rank is.
class Watchdog {
 public:
  /// Collective; on the thread that trains. One at a time.
  Watchdog(comm::HostGroup& world, const WatchOptions& options);
  /// Not collective: every rank for itself, best after MPI has ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// None: from when this returns it may go. In bounded time, even if the one before never answers.
  void look_after(const comm::GradientTransport* transport);

 private:
  void watch();
  void look();
  bool sends_for_node() const;
  void judge();
  void say_deaths();
  void end_after_loss();
  void follow_verdict();
  void check_launcher();
  void check_transport();
  void report();

  void end_job(const std::string& text, const std::string& reason = "");
  [[noreturn]] void leave();

  bool is_local(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)] == node_; }
  std::string name(int rank) const;
  std::string place(int rank) const;
  std::string waiting_ranks() const;

  WatchOptions options_;
  int rank_, node_;
  std::vector<int> node_of_rank_, local_ranks_;
  std::vector<std::string> host_names_;
  Board board_;
  Heartbeat heartbeat_;
  StackProbe stack_;
  double tick_s_, beat_every_s_;
  HangJudge judge_;
  pid_t launcher_ = 0;  ///< the parent; 0: this process was not launched as a rank
  bool sees_pids_ = true;

  double watch_s_ = 0;  ///< on the clock that stands while this process does
  double last_look_s_ = 0, sent_s_ = -1, verdict_since_s_ = -1, death_s_ = -1, broken_since_s_ = -1;
  bool said_unheard_ = false;
  TransportProbe transport_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace lockstep::train
