#include "cli/doctor/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/clock.h"

extern char** environ;

namespace lockstep::cli::checkup {
namespace {

constexpr std::size_t most_output_bytes = 1 << 16;

/// Starts the program in a process group of its own, its output going to `output`; its pid, or -1.
pid_t start(std::vector<std::string>& words, int output) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&files) != 0) return -1;
  if (posix_spawnattr_init(&attributes) != 0) {
    posix_spawn_file_actions_destroy(&files);
    return -1;
  }
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, pointers[0], &files, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error == 0 ? pid : -1;
}

/// Reads until the end of the stream or the deadline; false at the deadline.
bool read_all(int input, double deadline_s, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const double left_ms = (deadline_s - monotonic_s()) * 1e3;
    if (left_ms <= 0) return false;
    pollfd ready{.fd = input, .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(left_ms) + 1);
    if (count <= 0) continue;
    const ssize_t bytes = ::read(input, buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    text.append(buffer.data(), std::min(static_cast<std::size_t>(bytes), most_output_bytes - text.size()));
  }
}

/// True if the program ended by itself before the deadline, with 0.
bool succeeded(pid_t pid, double deadline_s) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended < 0 && errno != EINTR) return false;
    if (monotonic_s() >= deadline_s) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::kill(-pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return false;
}

}  // namespace

std::optional<std::string> output_of(std::vector<std::string> words, double timeout_s) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const double deadline_s = monotonic_s() + timeout_s;
  const pid_t pid = start(words, ends[1]);
  ::close(ends[1]);
  std::string text;
  bool good = pid > 0;
  if (good) {
    const bool whole = read_all(ends[0], deadline_s, text);
    good = succeeded(pid, whole ? deadline_s : 0) && whole;
  }
  ::close(ends[0]);
  if (!good) return std::nullopt;
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace lockstep::cli::checkup
