#include "train/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "base/clock.h"
#include "base/streams.h"
#include "base/thread.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "train/processes.h"
#include "train/signals.h"

namespace lockstep::train {
namespace {

using progress::Phase;

constexpr double unheard_note_s = 30;     // after which a node that never was heard of is named
constexpr double verdict_patience_s = 2;  // for the one who took the word
constexpr double death_patience_s = 5;    // for the launcher to end a job in which a rank has died
constexpr double broken_patience_s = 2;   // for the thread that trains to say what its transport has found
constexpr double lost_after_s = 5;        // silence of a rank elsewhere, if SIGTERM came and it is waited for
constexpr std::size_t most_named = 16;    // ranks that wait

// A signal handler reaches nothing else.
sem_t wake;
volatile std::sig_atomic_t report_asked = 0;

void on_report(int) {
  report_asked = 1;
  ::sem_post(&wake);
}

/// What standard error does not take within a second is dropped: nothing may hold up the end of the job.
void say(const std::string& text) { write_standard_error(text, 1); }

std::string wall_clock(double seconds_ago) {
  const std::time_t then = std::time(nullptr) - static_cast<std::time_t>(std::lround(seconds_ago));
  std::tm parts{};
  ::gmtime_r(&then, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

double tick_s(double timeout_s) { return timeout_s > 0 ? std::clamp(timeout_s / 20, 0.02, 0.1) : 0.1; }
double beat_every_s(double timeout_s) { return timeout_s > 0 ? std::clamp(timeout_s / 20, 0.05, 1.0) : 1.0; }

}  // namespace

Watchdog::Watchdog(comm::HostGroup& world, const WatchOptions& options)
    : options_(options),
      rank_(world.rank()),
      node_(world.topology().node_of_rank[static_cast<std::size_t>(rank_)]),
      node_of_rank_(world.topology().node_of_rank),
      host_names_(world.topology().host_names),
      board_(world),
      heartbeat_(world, board_),
      tick_s_(tick_s(options.hang_timeout_s)),
      beat_every_s_(beat_every_s(options.hang_timeout_s)),
      judge_(world.size(), options.hang_timeout_s, 2 * beat_every_s_ + 4 * tick_s_ + 0.2),
      launcher_(world.size() > 1 ? ::getppid() : 0),
      last_look_s_(monotonic_s()),
      transport_(tick_s_) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (is_local(rank)) local_ranks_.push_back(rank);
  }
  board_.rank(rank_).pid.store(::getpid());
  progress::write_to(&board_.rank(rank_).where);
  world.barrier();
  // In name spaces of their own, processes are numbered differently.
  const std::string own_name = name_of(::getpid());
  sees_pids_ = std::ranges::all_of(
      local_ranks_, [&](int rank) { return name_of(board_.rank(rank).pid.load()) == own_name; });

  ::sem_init(&wake, 0, 0);
  report_asked = 0;
  if (options_.signal_report) {
    struct sigaction action {};
    action.sa_handler = on_report;
    install_handler(SIGUSR1, action);
  } else {
    std::signal(SIGUSR1, SIG_IGN);  // who asks for a report that is not to be had should not end the run
  }
  try {
    thread_ = start_background_thread("the watchdog", [this] { watch(); });
  } catch (...) {
    progress::write_to(nullptr);
    throw;
  }
}

Watchdog::~Watchdog() {
  std::signal(SIGUSR1, SIG_IGN);
  over_ = true;
  ::sem_post(&wake);
  thread_.join();
  progress::write_to(nullptr);
  ::sem_destroy(&wake);
}

void Watchdog::look_after(const comm::GradientTransport* transport) { transport_.look_after(transport); }

/// Looks at once: a rank that dies in its first moments has then been heard of, and can be missed.
void Watchdog::watch() {
  while (!over_) {
    look();
    timespec until{};
    ::clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += static_cast<long>(tick_s_ * 1e9);
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_nsec -= 1'000'000'000;
      ++until.tv_sec;
    }
    ::sem_clockwait(&wake, CLOCK_MONOTONIC, &until);
  }
}

void Watchdog::look() {
  const double now_s = monotonic_s();
  watch_s_ += std::min(now_s - last_look_s_, 3 * tick_s_);
  last_look_s_ = now_s;
  board_.rank(rank_).beats.fetch_add(1);
  follow_verdict();
  heartbeat_.receive();
  if (watch_s_ - sent_s_ >= beat_every_s_ && sends_for_node()) {
    sent_s_ = watch_s_;
    heartbeat_.send();
  }
  check_launcher();
  check_transport();
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const RankRecord& record = board_.rank(rank);
    const progress::Record& where = record.where;
    const std::uint32_t waiting = where.waiting.load(), polling = where.polling.load();
    judge_.see(rank,
               {.marks = where.marks.load(),
                .beats = record.beats.load(),
                .waiting = waiting > 0,
                .polling = waiting == polling,
                .looks = where.looks.load()},
               watch_s_);
    // Of other nodes this rank knows what the first of its own hears.
    const int receiver = local_ranks_.front();
    if (!is_local(rank) &&
        (record.beats.load() == 0 || judge_.silent_s(receiver, watch_s_) > 4 * beat_every_s_))
      judge_.lose_sight(rank);
  }
  if (report_asked) {
    report_asked = 0;
    report();
  }
  if (sees_pids_) say_deaths();
  end_after_loss();
  if (options_.hang_timeout_s > 0) judge();
  if (rank_ == 0 && !said_unheard_ && watch_s_ > unheard_note_s) {
    said_unheard_ = true;
    for (std::size_t node = 0; node < host_names_.size(); ++node) {
      if (!heartbeat_.heard(static_cast<int>(node)))
        say(fmt::format(
            "lockstep: note: {} sends no heartbeats that arrive here (a firewall for UDP?): if a rank hangs "
            "there, it cannot be named\n",
            host_names_[node]));
    }
  }
}

/// The first of the node's ranks that is alive.
bool Watchdog::sends_for_node() const {
  for (const int rank : local_ranks_) {
    if (rank == rank_) return true;
    if (judge_.known(rank) && judge_.silent_s(rank, watch_s_) < 4 * tick_s_) return false;
  }
  return true;
}

void Watchdog::judge() {
  std::string missing;
  int first_alive = -1;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    RankRecord& record = board_.rank(rank);
    if (record.death_said.load() != 0) continue;  // the launcher has a little time to end the job
    const HangJudge::State state = judge_.state(rank, watch_s_);
    const bool local = is_local(rank) && sees_pids_;
    if (state == HangJudge::State::fine) {
      if (first_alive < 0 && judge_.known(rank)) first_alive = rank;
      if (!local || judge_.idle_s(rank, watch_s_) < options_.hang_timeout_s / 2) continue;
    }
    const ProcessState process = local ? state_of(record.pid.load()) : ProcessState{};
    if (process.traced) {  // its own time does not pass
      record.where.marks.fetch_add(1);
      record.beats.fetch_add(1);
      continue;
    }
    if (state == HangJudge::State::fine) continue;
    const bool silent = state == HangJudge::State::silent;
    missing += fmt::format("lockstep: {}: no {} for {:.1f} s; {}{}{}\n", name(rank),
                           silent ? "sign of life" : "progress",
                           silent ? judge_.silent_s(rank, watch_s_) : judge_.idle_s(rank, watch_s_),
                           place(rank), local ? "; " : "", local ? describe(process) : "");
  }
  if (missing.empty() && judge_.all_wait(watch_s_))
    missing =
        "lockstep: no rank gets any further: all that are known wait for one another, or for one that is not "
        "known\n";
  if (missing.empty()) return;
  // If the whole job still hears of itself, one node says it.
  if (first_alive >= 0 && !is_local(first_alive) && verdict_since_s_ < 0) {
    verdict_since_s_ = watch_s_;
    return;
  }
  if (first_alive >= 0 && !is_local(first_alive) && watch_s_ - verdict_since_s_ < verdict_patience_s) return;
  end_job(missing, fmt::format(" (fault.hang_timeout_s = {})", options_.hang_timeout_s));
}

void Watchdog::end_job(const std::string& text, const std::string& reason) {
  std::uint32_t expected = BoardHead::none;
  if (!board_.head().verdict.compare_exchange_strong(expected, BoardHead::being_said)) return;
  say(text + waiting_ranks() +
      fmt::format("lockstep: the job ends with exit code {}{}; started again, it goes on from its newest "
                  "checkpoint\n",
                  static_cast<int>(ExitCode::failure), reason));
  heartbeat_.send_verdict();
  board_.head().verdict.store(BoardHead::said);
  leave();
}

void Watchdog::follow_verdict() {
  const std::uint32_t verdict = board_.head().verdict.load();
  if (verdict == BoardHead::none) return;
  if (verdict == BoardHead::being_said) {
    if (verdict_since_s_ < 0) verdict_since_s_ = watch_s_;
    if (watch_s_ - verdict_since_s_ < verdict_patience_s) return;
  }
  leave();
}

/// MPI is not asked: it may be what hangs. A launcher ends the others when it sees the code.
void Watchdog::leave() {
  if (options_.signal_report) say(fmt::format("lockstep: stack of {}:\n{}", name(rank_), stack_.take()));
  ::_exit(static_cast<int>(ExitCode::failure));
}

void Watchdog::say_deaths() {
  const bool ending = ended_by_launcher() || told_to_end();
  for (const int rank : local_ranks_) {
    RankRecord& record = board_.rank(rank);
    if (rank == rank_ || record.death_said.load() != 0) continue;
    if (!ending && judge_.silent_s(rank, watch_s_) < 3 * tick_s_) continue;
    const Phase phase = record.where.phase.load();
    if (phase == Phase::end || phase == Phase::failure || !state_of(record.pid.load()).gone()) continue;
    std::uint32_t expected = 0;
    if (!record.death_said.compare_exchange_strong(expected, 1)) continue;
    say(fmt::format("lockstep: {} has died; {}\n", name(rank), place(rank)));
  }
}

/// The launcher ends a job that lost a rank, or SIGTERM says that it is to end: where all ranks are there
/// that is a request, which the next step obeys; where one is lost there is no next step.
void Watchdog::end_after_loss() {
  const bool told = told_to_end();
  if (!told && options_.hang_timeout_s <= 0) return;
  constexpr const char* meaning = "SIGTERM is taken for the end of this job, not for a request to stop";
  const bool stuck =
      board_.rank(rank_).where.waiting.load() > 0 && judge_.idle_s(rank_, watch_s_) > lost_after_s;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const RankRecord& record = board_.rank(rank);
    if (record.death_said.load() != 0) {
      if (death_s_ < 0) death_s_ = watch_s_;
      if (!told && watch_s_ - death_s_ <= death_patience_s) continue;
      end_job(fmt::format("lockstep: {} has died, and {}\n", name(rank),
                          told ? meaning : "the launcher leaves the others alone"));
    }
    if (!told || !stuck || (is_local(rank) && sees_pids_) || !judge_.known(rank)) continue;
    const double silent_s = judge_.silent_s(rank, watch_s_);
    const Phase phase = record.where.phase.load();
    if (silent_s <= lost_after_s || phase == Phase::end || phase == Phase::failure) continue;
    end_job(fmt::format("lockstep: {}: no sign of life for {:.1f} s; {}; {}\n", name(rank), silent_s,
                        place(rank), meaning));
  }
}

void Watchdog::check_launcher() {
  if (launcher_ == 0 || ::getppid() == launcher_) return;
  say(fmt::format("lockstep: rank {} ends: its launcher (process {}) is gone\n", rank_, launcher_));
  ::_exit(static_cast<int>(ExitCode::failure));
}

/// The thread that trains finds it out as well if it asks; while that one does, it has a moment to say it in
/// its own words.
void Watchdog::check_transport() {
  const std::string error = transport_.error();
  // A rank that is failing says why itself.
  if (error.empty() || board_.rank(rank_).where.phase.load() == Phase::failure) {
    broken_since_s_ = -1;
    return;
  }
  if (broken_since_s_ < 0) broken_since_s_ = watch_s_;
  if (watch_s_ - broken_since_s_ > broken_patience_s)
    end_job(fmt::format("lockstep: {}: {}; {}\n", name(rank_), error, place(rank_)));
}

void Watchdog::report() {
  std::string text;
  if (rank_ == 0) {
    const float step_ms = board_.rank(0).where.step_ms.load();
    text += fmt::format("lockstep: report at {}: {}\n", wall_clock(0),
                        step_ms > 0 ? fmt::format("{:.1f} ms a step, {:.3g} steps/s", step_ms, 1e3 / step_ms)
                                    : "no step is done yet");
    for (int rank = 0; rank < board_.ranks(); ++rank) {
      const double silent_s = judge_.known(rank) ? judge_.silent_s(rank, watch_s_) : 0;
      text += fmt::format(
          "lockstep:   {}: {}{}{}\n", name(rank), judge_.known(rank) ? place(rank) : "nothing is known",
          board_.rank(rank).where.waiting.load() > 0 ? "; waits for others" : "",
          silent_s > 1 + beat_every_s_ ? fmt::format("; no sign of life for {:.1f} s", silent_s) : "");
    }
  }
  say(text + fmt::format("lockstep: stack of {}: {}\n{}", name(rank_), place(rank_), stack_.take()));
}

std::string Watchdog::name(int rank) const {
  const auto node = static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)]);
  return fmt::format("rank {} ({}, process {})", rank, host_names_[node], board_.rank(rank).pid.load());
}

/// "in step 12, backward, bucket 3, since 2026-11-21T09:00:00Z (5.1 s)"
std::string Watchdog::place(int rank) const {
  const progress::Record& where = board_.rank(rank).where;
  const std::int64_t step = where.step.load(), since_ns = where.since_ns.load();
  const Phase phase = where.phase.load();
  const bool in_step = phase == Phase::backward || phase == Phase::sums || phase == Phase::header;
  const int bucket = in_step ? where.bucket.load() : -1;
  const double for_s = std::max(0.0, monotonic_s() - static_cast<double>(since_ns) * 1e-9);
  return fmt::format("{}{}{}{}", step > 0 ? fmt::format("in step {}, ", step) : "in ",
                     progress::to_string(phase), bucket >= 0 ? fmt::format(", bucket {}", bucket) : "",
                     since_ns > 0 ? fmt::format(", since {} ({:.1f} s)", wall_clock(for_s), for_s) : "");
}

std::string Watchdog::waiting_ranks() const {
  std::string text;
  std::size_t named = 0, more = 0;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (!judge_.known(rank) || judge_.state(rank, watch_s_) != HangJudge::State::fine) continue;
    if (board_.rank(rank).where.waiting.load() == 0) continue;
    if (board_.rank(rank).death_said.load() != 0 || judge_.silent_s(rank, watch_s_) > lost_after_s) continue;
    if (named < most_named) text += fmt::format("lockstep: {} waits: {}\n", name(rank), place(rank));
    ++(named < most_named ? named : more);
  }
  return text + (more > 0 ? fmt::format("lockstep: and {} more wait\n", more) : "");
}

}  // namespace lockstep::train
