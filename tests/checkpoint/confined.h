// run_confined: code that a bad file may crash, hang or make greedy, in a separate process.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "checkpoint/sample.h"
#include "support/temporary_folder.h"

#if defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_TEST_ADDRESSES_ARE_FREE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOCKSTEP_TEST_ADDRESSES_ARE_FREE 0
#endif
#endif
#if !defined(LOCKSTEP_TEST_ADDRESSES_ARE_FREE)
#define LOCKSTEP_TEST_ADDRESSES_ARE_FREE 1  // sanitizers reserve more than any limit could allow
#endif

namespace lockstep::test {

/// How a child process of run_confined ended.
struct Confined {
  int signal = 0;    ///< that ended it
  std::string text;  ///< what else went wrong; "" if nothing did
  int at = 0;        ///< the number it was busy with
  std::string log;   ///< what that wrote to standard error

  bool crashed() const {
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT || signal == SIGFPE;
  }
  std::string problem() const {
    if (signal == 0 && text.empty()) return "";
    return "number " + std::to_string(at) + ": " + text +
           (signal != 0 ? "ended by signal " + std::to_string(signal) : "") + "\n" + log.substr(0, 6000);
  }
};

/// Runs `body(0)`, `body(1)` ... `body(count - 1)` in a child process that may not use much more memory than
/// it has, nor be busy with one of them for long.
inline Confined run_confined(int count, const std::function<void(int)>& body) {
  struct Shared {
    int at;
    char text[1000];
  };
  auto* const shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *shared = {};
  const TemporaryFolder folder;
  const std::string log = folder.file("log");
  const int log_file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(log_file, STDERR_FILENO);
    for (const int caught : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) std::signal(caught, SIG_DFL);
#if LOCKSTEP_TEST_ADDRESSES_ARE_FREE
    constexpr rlim_t extra_bytes = rlim_t{256} << 20;
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + extra_bytes;
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
#endif
    const char* const factor = std::getenv("LOCKSTEP_TEST_TIME_FACTOR");
    const unsigned a_hang_s = 60 * (factor ? static_cast<unsigned>(std::atoi(factor)) : 1);
    try {
      for (shared->at = 0; shared->at < count; ++shared->at) {
        ::alarm(a_hang_s);
        if (::ftruncate(log_file, 0) != 0) throw std::runtime_error("the log cannot be emptied");
        body(shared->at);
      }
    } catch (const std::exception& error) {
      std::snprintf(shared->text, sizeof shared->text, "%s", error.what());
    }
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) continue;
  Confined result{WIFSIGNALED(status) ? WTERMSIG(status) : 0, shared->text, shared->at, ""};
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    result.text += "ended with status " + std::to_string(WEXITSTATUS(status));
  if (!result.problem().empty()) result.log = read_bytes(log);
  ::close(log_file);
  ::munmap(shared, sizeof(Shared));
  return result;
}

}  // namespace lockstep::test
