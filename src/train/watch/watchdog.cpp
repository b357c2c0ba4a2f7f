#include "train/watch/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/clock.h"
#include "base/streams.h"
#include "lockstep/base/error.h"
#include "lockstep/train/stop.h"
#include "train/watch/exit_record.h"
#include "train/watch/processes.h"

namespace lockstep::train {
namespace {

using progress::Phase;
using progress::RankStatus;
using Health = HangDetector::Health;
using JobEnd = RankStatusTable::JobEnd;

constexpr double report_unheard_after_s = 30;  // then a node without heartbeats is reported
constexpr double job_end_timeout_s = 2;        // for the reporting rank
constexpr double death_timeout_s = 5;          // for the launcher to end a job in which a rank died
constexpr double record_timeout_s = 1;         // to write the exit record, as storage may hang
constexpr double transport_timeout_s = 2;      // for the training thread to report an error of its transport
constexpr double lost_after_s = 5;             // a rank of another node is silent, and SIGTERM has come
constexpr std::size_t max_waiting_named = 16;

// Global, as a signal handler has no other access.
volatile std::sig_atomic_t report_requested = 0;
std::atomic<StopEvent*> sleep_of_watchdog{nullptr};

/// The report describes this moment: takes the stack here, and the rest as soon as the watchdog wakes.
void on_report_signal(int, siginfo_t*, void* context) {
  StackProbe::keep(context);
  report_requested = 1;
  if (StopEvent* const sleep = sleep_of_watchdog) sleep->wake();
}

/// Drops text that standard error does not accept within a second: nothing may delay the end of the job.
void print(const std::string& text) { write_standard_error(text, 1); }

std::string time_ago(double seconds) {
  return utc_text(std::time(nullptr) - static_cast<std::time_t>(std::lround(seconds)));
}

/// "rank 1 (node, process 7): no progress for 5.0 s; in step 3, backward" of a text of "lockstep: ..." lines.
std::string first_line_of(const std::string& text) {
  constexpr std::string_view prefix = "lockstep: ";
  const std::string line = text.substr(0, text.find('\n'));
  return line.starts_with(prefix) ? line.substr(prefix.size()) : line;
}

double check_interval_s(double timeout_s) {
  return timeout_s > 0 ? std::clamp(timeout_s / 20, 0.02, 0.1) : 0.1;
}
double heartbeat_interval_s(double timeout_s) {
  return timeout_s > 0 ? std::clamp(timeout_s / 20, 0.05, 1.0) : 1.0;
}

}  // namespace

Watchdog::Watchdog(comm::HostGroup& world, const WatchOptions& options)
    : rank_(world.rank()),
      node_of_rank_(world.topology().node_of_rank),
      host_names_(world.topology().host_names),
      table_(world),
      detector_(world.size(), 0, 0),
      transport_probe_(check_interval_s(0)),
      launcher_(world.size() > 1 ? ::getppid() : 0),
      last_check_s_(monotonic_s()) {
  // Process numbers differ between name spaces.
  const std::string program = name_of(::getpid());
  sees_pids_ = std::ranges::all_of(table_.local_ranks(), [&](int rank) {
    return name_of(static_cast<pid_t>(table_[rank].pid.load())) == program;
  });
  watch(options);
}

void Watchdog::watch(const WatchOptions& options) {
  stop();
  options_ = options;
  interval_s_ = check_interval_s(options.hang_timeout_s);
  heartbeat_interval_s_ = heartbeat_interval_s(options.hang_timeout_s);
  detector_ =
      HangDetector(table_.ranks(), options.hang_timeout_s, 2 * heartbeat_interval_s_ + 4 * interval_s_ + 0.2);
  stop_.emplace();
  report_requested = 0;
  if (!options.by_default) {
    stack_probe_.emplace();
    std::signal(SIGUSR1, SIG_IGN);  // a request for a report must not end the run
  }
  if (options_.signal_report) {
    sleep_of_watchdog = &*stop_;
    struct sigaction action {};
    action.sa_sigaction = on_report_signal;
    action.sa_flags = SA_SIGINFO;
    install_handler(SIGUSR1, action);
  }
  thread_ = start_background_thread("the watchdog", [this] { run(); });
}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  if (stack_probe_) std::signal(SIGUSR1, SIG_IGN);
  sleep_of_watchdog = nullptr;
  if (stop_) stop_->set();
  if (thread_.joinable()) thread_.join();
  stack_probe_.reset();
}

/// The first check is immediate, so that other nodes know a rank that dies early, and can miss it.
void Watchdog::run() {
  do check();
  while (!stop_->wait_for(interval_s_));
}

void Watchdog::check() {
  const double clock_s = monotonic_s();
  now_s_ += std::min(clock_s - last_check_s_, 3 * interval_s_);
  last_check_s_ = clock_s;
  obey_job_end();
  exchange_status();
  check_launcher();
  check_transport();
  observe_ranks();
  report_on_signal();
  report_deaths();
  end_job_after_loss();
  check_hangs();
  report_unheard_nodes();
}

/// Does not end the job through MPI, which may hang. The launcher sees the exit code and ends the others.
void Watchdog::exit_process() {
  if (options_.signal_report)
    print(fmt::format("lockstep: stack of {}:\n{}", name(rank_), stack_probe_->take()));
  ::_exit(static_cast<int>(ExitCode::failure));
}

void Watchdog::end_job(const std::string& text, const std::string& reason) {
  JobEnd expected = JobEnd::none;
  if (!table_.job_end().compare_exchange_strong(expected, JobEnd::being_reported)) return;
  print(text + waiting_ranks() +
        fmt::format(
            "lockstep: the job ends with exit code {}{}; a restart resumes from the newest checkpoint\n",
            static_cast<int>(ExitCode::failure), reason));
  table_.send(true);
  table_.job_end() = JobEnd::reported;
  record_sudden_end(first_line_of(text), record_timeout_s);
  exit_process();
}

void Watchdog::obey_job_end() {
  const JobEnd job_end = table_.job_end();
  if (job_end == JobEnd::none) return;
  if (job_end == JobEnd::being_reported) {
    if (job_end_expected_s_ < 0) job_end_expected_s_ = now_s_;
    if (now_s_ - job_end_expected_s_ < job_end_timeout_s) return;
  }
  exit_process();
}

void Watchdog::exchange_status() {
  table_[rank_].heartbeats.fetch_add(1);
  table_.receive();
  if (now_s_ - last_heartbeat_s_ < heartbeat_interval_s_ || !sends_for_node()) return;
  last_heartbeat_s_ = now_s_;
  table_.send();
}

/// The first live rank of the node sends.
bool Watchdog::sends_for_node() const {
  for (const int rank : table_.local_ranks()) {
    if (rank == rank_) return true;
    if (detector_.reachable(rank) && detector_.silent_s(rank, now_s_) < 4 * interval_s_) return false;
  }
  return true;
}

void Watchdog::check_launcher() {
  if (launcher_ == 0 || ::getppid() == launcher_) return;
  print(fmt::format("lockstep: rank {} ends: its launcher (process {}) is gone\n", rank_, launcher_));
  if (rank_ == 0)
    record_sudden_end(fmt::format("its launcher (process {}) is gone", launcher_), record_timeout_s);
  ::_exit(static_cast<int>(ExitCode::failure));
}

/// The training thread gets some time to find the error in a call of the transport, as it reports more
/// detail.
void Watchdog::check_transport() {
  const std::string error = transport_probe_.error();
  if (error.empty() || table_[rank_].current_phase() == Phase::failure) {  // the thread reports already
    transport_error_s_ = -1;
    return;
  }
  if (transport_error_s_ < 0) transport_error_s_ = now_s_;
  if (now_s_ - transport_error_s_ > transport_timeout_s)
    end_job(fmt::format("lockstep: {}: {}; {}\n", name(rank_), error, position(rank_)));
}

void Watchdog::observe_ranks() {
  for (int rank = 0; rank < table_.ranks(); ++rank) detector_.observe(rank, table_[rank], now_s_);
  // This rank knows about other nodes from the receiving rank of its node.
  const bool receives = detector_.silent_s(table_.local_ranks().front(), now_s_) <= 4 * heartbeat_interval_s_;
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    if (!table_.is_local(rank) && (!receives || table_[rank].heartbeats.load() == 0))
      detector_.mark_unreachable(rank);
  }
}

void Watchdog::report_deaths() {
  if (!sees_pids_) return;
  const bool job_ends = StopRequests::terminated_by_launcher() || StopRequests::sigterm_received();
  for (const int rank : table_.local_ranks()) {
    RankStatusTable::Row& row = table_[rank];
    if (rank == rank_ || row.death_reported) continue;
    if (!job_ends && detector_.silent_s(rank, now_s_) < 3 * interval_s_) continue;
    if (is_ending(rank) || !state_of(static_cast<pid_t>(row.pid.load())).gone()) continue;
    if (row.death_reported.exchange(true)) continue;
    const std::string text = fmt::format("{} has died; {}", name(rank), position(rank));
    print(fmt::format("lockstep: {}\n", text));
    record_sudden_end(text, record_timeout_s);  // now, as launchers leave the other ranks at most a second
  }
}

/// A launcher ends a job that has lost a rank, or sends SIGTERM. While all ranks live, SIGTERM is a request,
/// which the next step obeys. After the loss of a rank there is no next step.
void Watchdog::end_job_after_loss() {
  const bool sigterm = StopRequests::sigterm_received();
  if (!sigterm && options_.hang_timeout_s <= 0) return;
  constexpr const char* meaning = "SIGTERM now means the end of this job, not a request to stop";
  const bool waits_in_vain =
      table_[rank_].waiting.load() > 0 && detector_.idle_s(rank_, now_s_) > lost_after_s;
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    if (table_[rank].death_reported) {
      if (death_s_ < 0) death_s_ = now_s_;
      if (!sigterm && now_s_ - death_s_ <= death_timeout_s) continue;
      end_job(fmt::format("lockstep: {} has died, and {}\n", name(rank),
                          sigterm ? meaning : "the launcher does not end the other ranks"));
    }
    if (!sigterm || !waits_in_vain || sees_process(rank) || !detector_.reachable(rank)) continue;
    const double silent_s = detector_.silent_s(rank, now_s_);
    if (silent_s <= lost_after_s || is_ending(rank)) continue;
    end_job(fmt::format("lockstep: {}: no sign of life for {:.1f} s; {}; {}\n", name(rank), silent_s,
                        position(rank), meaning));
  }
}

void Watchdog::check_hangs() {
  if (options_.hang_timeout_s <= 0) return;
  std::string hung;
  int first_healthy = -1;
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    RankStatusTable::Row& row = table_[rank];
    if (row.death_reported) continue;  // the launcher gets a little time to end the job
    Health health = detector_.health(rank, now_s_);
    if (options_.by_default && !is_waited_for(rank)) health = Health::healthy;
    if (health == Health::healthy) {
      if (first_healthy < 0 && detector_.reachable(rank)) first_healthy = rank;
      if (!sees_process(rank) || detector_.idle_s(rank, now_s_) < options_.hang_timeout_s / 2) continue;
    }
    const ProcessState process =
        sees_process(rank) ? state_of(static_cast<pid_t>(row.pid.load())) : ProcessState{};
    if (process.traced) {  // a debugger holds it: no time passes
      row.ticks.fetch_add(1);
      row.heartbeats.fetch_add(1);
      continue;
    }
    if (health == Health::healthy) continue;
    const bool silent = health == Health::silent;
    hung += fmt::format(
        "lockstep: {}: no {} for {:.1f} s; {}{}{}\n", name(rank), silent ? "sign of life" : "progress",
        silent ? detector_.silent_s(rank, now_s_) : detector_.idle_s(rank, now_s_), position(rank),
        sees_process(rank) ? "; " : "", sees_process(rank) ? describe(process) : "");
  }
  bool any_died = false;  // other ranks wait for it forever; end_job_after_loss() ends the job
  for (int rank = 0; rank < table_.ranks(); ++rank) any_died = any_died || table_[rank].death_reported;
  if (hung.empty() && !any_died && detector_.all_wait(now_s_))
    hung = "lockstep: no rank makes progress: every rank that can be reached waits for another one\n";
  if (hung.empty()) return;
  // The node of the first healthy rank reports. The others give it some time.
  if (first_healthy >= 0 && !table_.is_local(first_healthy)) {
    if (job_end_expected_s_ < 0) job_end_expected_s_ = now_s_;
    if (now_s_ - job_end_expected_s_ < job_end_timeout_s) return;
  }
  end_job(hung, options_.by_default
                    ? fmt::format(" (limit: {} s; Session::watch() or {} sets another one, 0: none)",
                                  options_.hang_timeout_s, hang_timeout_variable)
                    : fmt::format(" (fault.hang_timeout_s = {})", options_.hang_timeout_s));
}

void Watchdog::report_unheard_nodes() {
  if (rank_ != 0 || reported_unheard_ || now_s_ <= report_unheard_after_s) return;
  reported_unheard_ = true;
  for (std::size_t node = 0; node < host_names_.size(); ++node) {
    if (!table_.has_heard(static_cast<int>(node)))
      print(
          fmt::format("lockstep: note: no heartbeats arrive from {} (does a firewall drop UDP?): if a rank "
                      "hangs there, it cannot be named\n",
                      host_names_[node]));
  }
}

void Watchdog::report_on_signal() {
  if (!report_requested) return;
  report_requested = 0;
  std::string text;
  if (rank_ == 0) {
    const double step_ms = static_cast<double>(table_[0].step_us.load()) * 1e-3;
    text += fmt::format("lockstep: report at {}: {}\n", utc_now(),
                        step_ms > 0 ? fmt::format("{:.1f} ms a step, {:.3g} steps/s", step_ms, 1e3 / step_ms)
                                    : "no step is done yet");
    for (int rank = 0; rank < table_.ranks(); ++rank) {
      const bool reachable = detector_.reachable(rank);
      const double silent_s = reachable ? detector_.silent_s(rank, now_s_) : 0;
      text += fmt::format(
          "lockstep:   {}: {}{}{}\n", name(rank), reachable ? position(rank) : "nothing is known",
          table_[rank].waiting.load() > 0 ? "; waits for others" : "",
          silent_s > 1 + heartbeat_interval_s_ ? fmt::format("; no sign of life for {:.1f} s", silent_s)
                                               : "");
    }
  }
  print(text +
        fmt::format("lockstep: stack of {}: {}\n{}", name(rank_), position(rank_), stack_probe_->take()));
}

bool Watchdog::is_ending(int rank) const {
  const Phase phase = table_[rank].current_phase();
  return phase == Phase::end || phase == Phase::failure;
}

/// Whether a rank has waited for longer than the timeout. Sums and header of a step wait, possibly only for a
/// device. A rank at its end needs no others.
bool Watchdog::is_waited_for(int rank) const {
  for (int other = 0; other < table_.ranks(); ++other) {
    const RankStatus& status = table_[other];
    const Phase phase = status.current_phase();
    const bool leaves = phase == Phase::teardown || is_ending(other);
    const bool waits = status.waiting.load() > 0 || phase == Phase::sums || phase == Phase::header;
    if (other == rank || !waits || !detector_.reachable(other) || (leaves && !is_ending(rank))) continue;
    if (detector_.idle_s(other, now_s_) > options_.hang_timeout_s) return true;
  }
  return false;
}

std::string Watchdog::name(int rank) const {
  const auto node = static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)]);
  return fmt::format("rank {} ({}, process {})", rank, host_names_[node], table_[rank].pid.load());
}

/// "in step 12, backward, bucket 3, since 2026-11-21T09:00:00Z (5.1 s)"
std::string Watchdog::position(int rank) const {
  const RankStatus& status = table_[rank];
  const std::int64_t step = status.step.load(), since_ns = status.phase_since_ns.load();
  const Phase phase = status.current_phase();
  const bool in_buckets = phase == Phase::backward || phase == Phase::sums || phase == Phase::header;
  const std::int64_t bucket = in_buckets ? status.bucket.load() : -1;
  const double for_s = std::max(0.0, monotonic_s() - static_cast<double>(since_ns) * 1e-9);
  std::string place;
  if (phase == Phase::program)
    place = status.waiting.load() > 0 ? "in a collective of the program" : "in the program's own code";
  if (phase == Phase::end) place = "at the end of the program";
  if (phase == Phase::teardown) place = "at the end of the program, or of an object of all ranks";
  place = !place.empty() ? fmt::format("{}{}", step > 0 ? fmt::format("after step {}, ", step) : "", place)
                         : fmt::format("{}{}", step > 0 ? fmt::format("in step {}, ", step) : "in ",
                                       progress::to_string(phase));
  return fmt::format("{}{}{}", place, bucket >= 0 ? fmt::format(", bucket {}", bucket) : "",
                     since_ns > 0 ? fmt::format(", since {} ({:.1f} s)", time_ago(for_s), for_s) : "");
}

std::string Watchdog::waiting_ranks() const {
  std::string text;
  std::size_t waiting = 0;
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    if (!detector_.reachable(rank) || detector_.health(rank, now_s_) != Health::healthy) continue;
    const RankStatusTable::Row& row = table_[rank];
    if (row.waiting.load() == 0 || row.death_reported) continue;
    if (detector_.silent_s(rank, now_s_) > lost_after_s) continue;
    if (++waiting <= max_waiting_named)
      text += fmt::format("lockstep: {} waits: {}\n", name(rank), position(rank));
  }
  if (waiting > max_waiting_named)
    text += fmt::format("lockstep: and {} more wait\n", waiting - max_waiting_named);
  return text;
}

}  // namespace lockstep::train
