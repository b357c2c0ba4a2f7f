#include "train/time_limit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "base/clock.h"
#include "base/thread.h"

extern char** environ;

namespace lockstep::train {
namespace {

constexpr std::chrono::minutes ask_again{5};
constexpr int answer_time_ms = 30'000, look_every_ms = 100;

/// What a command prints, up to a line; empty if it fails, does not answer in time, or nobody asks any
/// longer. No copy of this process is made (posix_spawn), as network libraries do not survive one.
std::string first_line_of(std::array<const char*, 8> words, const std::atomic<bool>& over) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failed =
      ::posix_spawnp(&child, words[0], &actions, &attributes, const_cast<char**>(words.data()), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string line;
  if (failed == 0) {
    pollfd readable{ends[0], POLLIN, 0};
    std::array<char, 256> text{};
    int ready = 0;
    for (int waited_ms = 0; ready == 0 && waited_ms < answer_time_ms && !over; waited_ms += look_every_ms)
      ready = ::poll(&readable, 1, look_every_ms);
    if (ready > 0) {
      const ssize_t bytes = ::read(ends[0], text.data(), text.size());
      if (bytes > 0) line.assign(text.data(), static_cast<std::size_t>(bytes));
    }
    ::kill(child, SIGKILL);  // of one that has ended nothing is left to kill, and its number is still taken
    int status = 0;
    ::waitpid(child, &status, 0);
  }
  ::close(ends[0]);
  return line.substr(0, line.find('\n'));
}

std::optional<long> number(std::string_view text) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> seconds_of(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  long days = 0;
  if (const std::size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto found = number(text.substr(0, dash));
    if (!found) return std::nullopt;
    days = *found;
    text.remove_prefix(dash + 1);
  }
  double seconds = 0;
  for (int parts = 0;; ++parts) {
    const std::size_t colon = text.find(':');
    const auto found = number(text.substr(0, colon));
    if (!found || parts > 2) return std::nullopt;
    seconds = seconds * 60 + static_cast<double>(*found);
    if (colon == std::string_view::npos) break;
    text.remove_prefix(colon + 1);
  }
  return static_cast<double>(days) * 86400 + seconds;
}

TimeLimit::TimeLimit(bool asks) : end_s_(std::numeric_limits<double>::infinity()) {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (!asks || !job) return;
  const char* const end_time = std::getenv("SLURM_JOB_END_TIME");
  if (const auto end = end_time ? number(end_time) : std::nullopt)
    end_s_ = monotonic_s() + static_cast<double>(*end) - static_cast<double>(std::time(nullptr));
  thread_ = start_background_thread("the watch over the time limit",
                                    [this, job = std::string(job)] { ask_now_and_then(job); });
}

TimeLimit::~TimeLimit() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

double TimeLimit::left_s() const { return end_s_.load(std::memory_order_relaxed) - monotonic_s(); }

void TimeLimit::ask_now_and_then(const std::string& job) {
  for (std::unique_lock lock(mutex_); !over_;
       changed_.wait_for(lock, ask_again, [this] { return over_.load(); })) {
    lock.unlock();
    const std::string answer = first_line_of({"squeue", "-h", "-j", job.c_str(), "-o", "%L", nullptr}, over_);
    if (const auto left = seconds_of(answer)) {
      end_s_ = monotonic_s() + *left;
    } else if (answer == "UNLIMITED") {
      end_s_ = std::numeric_limits<double>::infinity();
    }
    lock.lock();
  }
}

}  // namespace lockstep::train
