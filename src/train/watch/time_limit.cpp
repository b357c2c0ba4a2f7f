#include "lockstep/train/time_limit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

extern char** environ;

namespace lockstep::train {
namespace {

constexpr double ask_interval_s = 300, answer_timeout_s = 30;
constexpr int poll_interval_ms = 100;

/// The first output line of a command; empty if it fails, does not answer in time, or `stop` is set. It uses
/// posix_spawn(), as network libraries do not survive a fork().
std::string first_line_of(std::array<const char*, 8> words, StopEvent& stop) {
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
    for (const Stopwatch watch;
         ready == 0 && watch.elapsed_ms() < answer_timeout_s * 1e3 && !stop.wait_for(0);)
      ready = ::poll(&readable, 1, poll_interval_ms);
    if (ready > 0) {
      const ssize_t bytes = ::read(ends[0], text.data(), text.size());
      if (bytes > 0) line.assign(text.data(), static_cast<std::size_t>(bytes));
    }
    ::kill(child, SIGKILL);  // does nothing if it has ended: its number is reserved until waitpid()
    int status = 0;
    ::waitpid(child, &status, 0);
  }
  ::close(ends[0]);
  return line.substr(0, line.find('\n'));
}

std::optional<long> number(std::string_view text) {
  long value = 0;
  return parse_number(text, value) && value >= 0 ? std::optional(value) : std::nullopt;
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

struct TimeLimit::Watch {
  ~Watch() {
    stop.set();
    if (thread.joinable()) thread.join();
  }

  void ask_squeue(const std::string& job) {
    do {
      const std::string answer =
          first_line_of({"squeue", "-h", "-j", job.c_str(), "-o", "%L", nullptr}, stop);
      if (const auto left_s = seconds_of(answer)) {
        end_s = monotonic_s() + *left_s;
      } else if (answer == "UNLIMITED") {
        end_s = std::numeric_limits<double>::infinity();
      }
    } while (!stop.wait_for(ask_interval_s));
  }

  std::atomic<double> end_s = std::numeric_limits<double>::infinity();  // on the monotonic clock
  StopEvent stop;
  std::thread thread;
};

TimeLimit::TimeLimit(bool asks) : watch_(std::make_unique<Watch>()) {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (!asks || !job) return;
  const char* const end_time = std::getenv("SLURM_JOB_END_TIME");
  if (const auto end = end_time ? number(end_time) : std::nullopt)
    watch_->end_s = monotonic_s() + static_cast<double>(*end) - static_cast<double>(std::time(nullptr));
  watch_->thread = start_background_thread(
      "the time limit", [watch = watch_.get(), job = std::string(job)] { watch->ask_squeue(job); });
}

TimeLimit::~TimeLimit() = default;

double TimeLimit::left_s() const { return watch_->end_s.load(std::memory_order_relaxed) - monotonic_s(); }

bool TimeLimit::is_up(std::int64_t parameter_bytes) const {
  constexpr double assumed_bytes_per_s = 100e6;
  const double save_s =
      longest_save_s_ > 0 ? longest_save_s_ : 4 * static_cast<double>(parameter_bytes) / assumed_bytes_per_s;
  return left_s() < 2 * (longest_step_s_ + save_s);
}

}  // namespace lockstep::train
