#include "base/streams.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace lockstep {
namespace {

/// What a pipe takes at once, or not at all: a longer write could wait.
constexpr std::size_t most_bytes_at_once = 4096;

constexpr int nobody_reads = -1;  // no number of the system's
std::atomic<int> first_trouble{0};

void note_trouble(int error) {
  int none = 0;
  first_trouble.compare_exchange_strong(none, error);
}

/// Is it ready to take some bytes? Waits until `deadline_s`.
bool wait_until_writable(double deadline_s) {
  while (true) {
    const double left_s = deadline_s - monotonic_s();
    pollfd error{STDERR_FILENO, POLLOUT, 0};
    const int ready = ::poll(&error, 1, left_s > 0 ? static_cast<int>(left_s * 1e3) + 1 : 0);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

void settle_standard_streams() {
  for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int lowest_free = ::open("/dev/null", O_RDWR);  // is this one
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(signal, SIG_IGN);
  }
}

bool write_standard_error(std::string_view text, double wait_s) noexcept {
  const double deadline_s = monotonic_s() + wait_s;
  while (!text.empty()) {
    if (!wait_until_writable(deadline_s)) {
      note_trouble(nobody_reads);
      return false;
    }
    const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min(text.size(), most_bytes_at_once));
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN && monotonic_s() < deadline_s) {
      continue;
    } else if (written < 0 && errno != EINTR) {
      note_trouble(errno == EAGAIN ? nobody_reads : errno);
      return false;
    }
  }
  return true;
}

std::string standard_error_trouble() {
  const int error = first_trouble;
  if (error == 0) return "";
  return error == nobody_reads ? "nobody reads it" : std::strerror(error);
}

}  // namespace lockstep
