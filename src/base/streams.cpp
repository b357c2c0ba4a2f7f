#include "base/streams.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/clock.h"
#include "base/text.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// A pipe takes a write of this size as a whole or not at all; a longer one could block.
constexpr std::size_t max_bytes_at_once = 4096;

constexpr int nobody_reads = -1;  // not an errno
std::atomic<int> first_trouble{0};

std::atomic<int> terminal{STDERR_FILENO};  // for its kind and size only: text goes to standard error
std::atomic<bool> line_is_drawn{false};
constexpr std::string_view erase_line = "\r\x1b[K";

void note_trouble(int error) {
  int none = 0;
  first_trouble.compare_exchange_strong(none, error);
}

/// Waits until standard error can take bytes; false after `deadline_s`.
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

void protect_standard_streams() {
  for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int lowest_free = ::open("/dev/null", O_RDWR);  // is this one
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(signal, SIG_IGN);
  }
}

namespace {

bool write_all(std::string_view text, double wait_s) noexcept {
  const double deadline_s = monotonic_s() + wait_s;
  while (!text.empty()) {
    if (!wait_until_writable(deadline_s)) {
      note_trouble(nobody_reads);
      return false;
    }
    const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min(text.size(), max_bytes_at_once));
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

}  // namespace

void find_terminal_behind(const std::string& name) {
  struct stat status {};
  if (::fstat(STDERR_FILENO, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  const int descriptor = ::open(name.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor >= 0 && ::isatty(descriptor) != 0)
    terminal = descriptor;
  else if (descriptor >= 0)
    ::close(descriptor);
}

bool standard_error_redraws() {
  const char* const type = std::getenv("TERM");
  return ::isatty(terminal) != 0 && type && std::string_view(type) != "dumb";
}

int standard_error_columns() {
  constexpr int usual_columns = 80;
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual_columns;
}

void draw_line(std::string_view line) noexcept {
  line_is_drawn = true;
  if (write_all(erase_line, 0)) write_all(line, 0);
}

void keep_drawn_line() noexcept {
  if (line_is_drawn.exchange(false)) write_all("\n", 0);
}

bool write_standard_error(std::string_view text, double wait_s) noexcept {
  if (line_is_drawn.exchange(false)) write_all(erase_line, wait_s);
  return write_all(text, wait_s);
}

std::string standard_error_trouble() {
  const int error = first_trouble;
  if (error == 0) return "";
  return error == nobody_reads ? "nobody reads it" : std::strerror(error);
}

namespace {

class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_standard_error({line.data(), line.size()});
  }
  void flush_() override {}
};

}  // namespace

Log::Log() : Log(0) {}

Log::Log(int rank) {
  auto sink = std::make_shared<StandardError>();
  sink->set_pattern(rank > 0 ? fmt::format("[%H:%M:%S] [rank {}] %v", rank) : "[%H:%M:%S] %v");
  logger_ = std::make_shared<spdlog::logger>("lockstep", std::move(sink));
  logger_->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

void Log::write(LogLevel level, std::string_view text) const {
  const std::string line = on_one_line(text);
  switch (level) {
    case LogLevel::info:
      logger_->info(line);
      break;
    case LogLevel::warning:
      logger_->warn("warning: {}", line);
      break;
    case LogLevel::error:
      logger_->error("error: {}", line);
      break;
  }
}

}  // namespace lockstep
