// A preloaded library that makes calls on files fail, or kills the process at them; README.md says how to
// ask. The program under test knows nothing of it. Calls that the C library makes of itself (fopen) are not
// seen.
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>

#include "base/launcher.h"

namespace {

int rank_of_process() { return std::max(0, lockstep::launcher::rank()); }

[[noreturn]] void refuse(std::string_view word) {
  std::fprintf(stderr, "LOCKSTEP_FAULT: cannot understand '%.*s'\n", static_cast<int>(word.size()),
               word.data());
  std::_Exit(2);
}

enum class Deed { nothing, fail, shorten, kill_before, kill_middle, kill_after };

/// What LOCKSTEP_FAULT asks for.
struct Rule {
  std::string calls, path;       // calls: ",write,fsync,"; empty: all
  std::string of_call, of_file;  // what nth counts; empty: all of those
  bool this_rank = true;
  bool traces = false, always = false, half = false;
  long nth = 1;
  Deed deed = Deed::nothing;
  int error = 0;
  int log = STDERR_FILENO;
  long clock_s = 0;  // added to the clock once more at each look at it

  explicit Rule(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      if (end > 0) read(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (half && deed == Deed::nothing) deed = Deed::shorten;
  }

 private:
  void read(std::string_view word) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, equals);
    const std::string value(word.substr(std::min(equals + 1, word.size())));
    if (key == "rank") {
      this_rank = std::atol(value.c_str()) == rank_of_process();
    } else if (key == "call" && !value.empty()) {
      calls = "," + value + ",";
    } else if (key == "path" && !value.empty()) {
      path = value;
    } else if (key == "of" && value.find(':') != std::string::npos) {
      of_call = value.substr(0, value.find(':'));
      of_file = value.substr(value.find(':') + 1);
    } else if (key == "nth" && std::atol(value.c_str()) > 0) {
      nth = std::atol(value.c_str());
    } else if (key == "errno") {
      deed = Deed::fail;
      error = error_named(value);
    } else if (key == "kill" && value == "before") {
      deed = Deed::kill_before;
    } else if (key == "kill" && value == "middle") {
      deed = Deed::kill_middle;
    } else if (key == "kill" && value == "after") {
      deed = Deed::kill_after;
    } else if (key == "clock") {
      clock_s = std::atol(value.c_str());
    } else if (word == "always") {
      always = true;
    } else if (word == "short") {
      half = true;
    } else if (word == "trace") {
      traces = true;
    } else if (key == "log" && !value.empty()) {
      log = static_cast<int>(
          ::syscall(SYS_openat, AT_FDCWD, value.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
      if (log < 0) refuse(word);
    } else {
      refuse(word);
    }
  }

  static int error_named(std::string_view name) {
    if (name == "ENOSPC") return ENOSPC;
    if (name == "EDQUOT") return EDQUOT;
    if (name == "EIO") return EIO;
    if (name == "EROFS") return EROFS;
    if (name == "ENOENT") return ENOENT;
    refuse(name);
  }
};

const Rule& rule() {
  static const char* const text = std::getenv("LOCKSTEP_FAULT");
  static const Rule rule(text ? text : "rank=none");
  return rule;
}

std::atomic<long> matches{0}, looks_at_clock{0};

timespec now() {
  timespec time{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
  return time;
}

/// One call of the program, on its way to the real one.
class Call {
 public:
  Call(const char* name, const char* path, const char* second = "") : name_(name) { look(path, second); }
  Call(const char* name, int descriptor) : name_(name) {
    if (!rule().this_rank) return;
    const int error = errno;
    char link[64], path[PATH_MAX] = "";
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = ::readlink(link, path, sizeof path - 1);
    path[std::max<ssize_t>(length, 0)] = '\0';
    errno = error;
    look(path, "");
  }

  /// Does what was asked. `real` makes the call; `half` moves the first half of the bytes, of calls that move
  /// any.
  template <class Real, class Half>
  auto make(const Real& real, const Half& half) -> decltype(real()) {
    if (number_ == 0) return real();
    const Rule& asked = rule();
    const bool first = number_ == asked.nth, later = number_ > asked.nth;
    const bool strikes = asked.deed != Deed::nothing && (first || (later && (asked.always || asked.half)));
    if (strikes && asked.half && (first || asked.deed == Deed::shorten)) {
      const auto result = half();
      say("shortened");
      return result;
    }
    if (strikes && asked.deed == Deed::fail) {
      say("failed");
      errno = asked.error;
      return -1;
    }
    if (strikes && asked.deed == Deed::kill_middle) half();
    if (strikes && asked.deed != Deed::kill_after) die();
    const auto result = real();
    if (strikes) die();
    if (asked.traces) say("passed");
    return result;
  }
  template <class Real>
  auto make(const Real& real) -> decltype(real()) {
    return make(real, real);
  }

 private:
  void look(const char* path, const char* second) {
    const Rule& asked = rule();
    if (!asked.this_rank) return;
    std::snprintf(paths_, sizeof paths_, "%s%s%s", path ? path : "", *second ? " -> " : "", second);
    char name[32];
    std::snprintf(name, sizeof name, ",%s,", name_);
    if (!asked.calls.empty() && asked.calls.find(name) == std::string::npos) return;
    if (!std::strstr(paths_, asked.path.c_str())) return;
    start_ = now();
    if (counts(path ? path : ""))
      number_ = ++matches;
    else if (matches >= asked.nth)
      number_ = asked.nth + 1;  // a later one
  }

  bool counts(const char* path) const {
    const Rule& asked = rule();
    if (asked.of_call.empty()) return true;
    const char* const slash = std::strrchr(path, '/');
    return asked.of_call == name_ && ::fnmatch(asked.of_file.c_str(), slash ? slash + 1 : path, 0) == 0;
  }

  [[noreturn]] void die() {
    say("killed");
    for (;;) ::kill(::getpid(), SIGKILL);
  }

  /// In one write, so that lines of threads and ranks stay whole.
  void say(const char* what) const {
    const int error = errno;
    const timespec end = now();
    char line[2 * PATH_MAX + 256];
    const int length = std::snprintf(
        line, sizeof line, "fault: rank=%d nth=%ld call=%s %s from=%lld.%09ld to=%lld.%09ld path=%s\n",
        rank_of_process(), number_, name_, what, static_cast<long long>(start_.tv_sec), start_.tv_nsec,
        static_cast<long long>(end.tv_sec), end.tv_nsec, paths_);
    // Not write(): this library's own calls are not the program's.
    ::syscall(SYS_write, rule().log, line,
              std::min<std::size_t>(static_cast<std::size_t>(length), sizeof line - 1));
    errno = error;
  }

  const char* name_;
  long number_ = 0;  // 0: not a call that the rule is about
  timespec start_{};
  char paths_[2 * PATH_MAX + 8];
};

/// The function of this name that would have been called without this library.
template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

const char* open_name(int flags) { return (flags & O_CREAT) != 0 ? "create" : "open"; }

/// The first half of the bytes, as one piece of memory less than the whole list.
ssize_t write_half(int descriptor, const iovec* pieces, int count, off_t offset, bool positioned) {
  std::size_t bytes = 0;
  for (int piece = 0; piece < count; ++piece) bytes += pieces[piece].iov_len;
  std::size_t left = (bytes + 1) / 2, done = 0;
  for (int piece = 0; piece < count && left > 0; ++piece) {
    const std::size_t part = std::min(left, pieces[piece].iov_len);
    const long wrote = positioned ? ::syscall(SYS_pwrite64, descriptor, pieces[piece].iov_base, part,
                                              offset + static_cast<off_t>(done))
                                  : ::syscall(SYS_write, descriptor, pieces[piece].iov_base, part);
    if (wrote < 0) return done > 0 ? static_cast<ssize_t>(done) : -1;
    done += static_cast<std::size_t>(wrote);
    left -= part;
  }
  return static_cast<ssize_t>(done);
}

time_t clock_shift_s() {
  if (rule().clock_s == 0 || !rule().this_rank) return 0;
  return ++looks_at_clock * rule().clock_s;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

#define LOCKSTEP_FAULT_OPEN(function)                                                  \
  int function(const char* path, int flags, ...) {                                     \
    va_list arguments;                                                                 \
    va_start(arguments, flags);                                                        \
    const mode_t mode = mode_of(flags, arguments);                                     \
    va_end(arguments);                                                                 \
    static auto* const next = real<int(const char*, int, ...)>(#function);             \
    return Call(open_name(flags), path).make([&] { return next(path, flags, mode); }); \
  }
LOCKSTEP_FAULT_OPEN(open)
LOCKSTEP_FAULT_OPEN(open64)

#define LOCKSTEP_FAULT_OPENAT(function)                                                           \
  int function(int directory, const char* path, int flags, ...) {                                 \
    va_list arguments;                                                                            \
    va_start(arguments, flags);                                                                   \
    const mode_t mode = mode_of(flags, arguments);                                                \
    va_end(arguments);                                                                            \
    static auto* const next = real<int(int, const char*, int, ...)>(#function);                   \
    return Call(open_name(flags), path).make([&] { return next(directory, path, flags, mode); }); \
  }
LOCKSTEP_FAULT_OPENAT(openat)
LOCKSTEP_FAULT_OPENAT(openat64)

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  return Call("write", descriptor)
      .make([&] { return next(descriptor, data, bytes); },
            [&] { return next(descriptor, data, (bytes + 1) / 2); });
}

ssize_t writev(int descriptor, const iovec* pieces, int count) {
  static auto* const next = real<ssize_t(int, const iovec*, int)>("writev");
  return Call("write", descriptor)
      .make([&] { return next(descriptor, pieces, count); },
            [&] { return write_half(descriptor, pieces, count, 0, false); });
}

#define LOCKSTEP_FAULT_PWRITE(function)                                                  \
  ssize_t function(int descriptor, const void* data, size_t bytes, off_t offset) {       \
    static auto* const next = real<ssize_t(int, const void*, size_t, off_t)>(#function); \
    return Call("pwrite", descriptor)                                                    \
        .make([&] { return next(descriptor, data, bytes, offset); },                     \
              [&] { return next(descriptor, data, (bytes + 1) / 2, offset); });          \
  }
LOCKSTEP_FAULT_PWRITE(pwrite)
LOCKSTEP_FAULT_PWRITE(pwrite64)

#define LOCKSTEP_FAULT_PWRITEV(function)                                               \
  ssize_t function(int descriptor, const iovec* pieces, int count, off_t offset) {     \
    static auto* const next = real<ssize_t(int, const iovec*, int, off_t)>(#function); \
    return Call("pwrite", descriptor)                                                  \
        .make([&] { return next(descriptor, pieces, count, offset); },                 \
              [&] { return write_half(descriptor, pieces, count, offset, true); });    \
  }
LOCKSTEP_FAULT_PWRITEV(pwritev)
LOCKSTEP_FAULT_PWRITEV(pwritev64)

#define LOCKSTEP_FAULT_DESCRIPTOR(function)                                  \
  int function(int descriptor) {                                             \
    static auto* const next = real<int(int)>(#function);                     \
    return Call("fsync", descriptor).make([&] { return next(descriptor); }); \
  }
LOCKSTEP_FAULT_DESCRIPTOR(fsync)
LOCKSTEP_FAULT_DESCRIPTOR(fdatasync)

#define LOCKSTEP_FAULT_TRUNCATE(function)                                               \
  int function(int descriptor, off_t bytes) noexcept {                                  \
    static auto* const next = real<int(int, off_t)>(#function);                         \
    return Call("ftruncate", descriptor).make([&] { return next(descriptor, bytes); }); \
  }
LOCKSTEP_FAULT_TRUNCATE(ftruncate)
LOCKSTEP_FAULT_TRUNCATE(ftruncate64)

int rename(const char* from, const char* to) noexcept {
  static auto* const next = real<int(const char*, const char*)>("rename");
  return Call("rename", from, to).make([&] { return next(from, to); });
}

int symlink(const char* target, const char* path) noexcept {
  static auto* const next = real<int(const char*, const char*)>("symlink");
  return Call("symlink", path).make([&] { return next(target, path); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = real<int(const char*, mode_t)>("mkdir");
  return Call("mkdir", path).make([&] { return next(path, mode); });
}

int unlink(const char* path) noexcept {
  static auto* const next = real<int(const char*)>("unlink");
  return Call("unlink", path).make([&] { return next(path); });
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const next = real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += clock_shift_s();
  return result;
}

time_t time(time_t* seconds) noexcept {
  timespec time{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
  const time_t result = time.tv_sec + clock_shift_s();
  if (seconds) *seconds = result;
  return result;
}

}  // extern "C"
