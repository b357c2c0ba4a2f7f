#include "train/watch/processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace lockstep::train {
namespace {

// Stays installed, like the handlers, for the thread that installs them.
alignas(64) std::array<std::byte, 256 * 1024> handler_stack;

/// The beginning of a file of /proc; empty if it cannot be read.
template <std::size_t size>
const char* read_proc(pid_t pid, const char* name, char (&text)[size]) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/%s", static_cast<int>(pid), name);
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t bytes = descriptor < 0 ? 0 : ::read(descriptor, text, size - 1);
  if (descriptor >= 0) ::close(descriptor);
  text[bytes > 0 ? bytes : 0] = '\0';
  return text;
}

}  // namespace

ProcessState state_of(pid_t pid) {
  char text[2048];
  read_proc(pid, "status", text);
  ProcessState state;
  if (const char* const line = std::strstr(text, "\nState:\t")) state.letter = line[8];
  if (const char* const line = std::strstr(text, "\nTracerPid:\t")) state.traced = std::atoi(line + 12) != 0;
  return state;
}

const char* describe(ProcessState state) {
  if (state.gone()) return "the process is gone";
  if (state.letter == 'T' || state.letter == 't') return "the process is stopped";
  if (state.letter == 'D') return "the process waits in the kernel, as for a disk or a network file system";
  if (state.letter == 'S') return "the process sleeps";
  return "the process runs";
}

pid_t parent_of(pid_t pid) {
  char text[2048];
  read_proc(pid, "status", text);
  const char* const line = std::strstr(text, "\nPPid:\t");
  return line ? std::atoi(line + 7) : 0;
}

std::string name_of(pid_t pid) {
  char text[64];
  read_proc(pid, "comm", text);
  text[std::strcspn(text, "\n")] = '\0';
  if (std::strncmp(text, "ld-linux", 8) != 0) return text;
  // A bundle's mpirun: LOADER --library-path FOLDERS PROGRAM ... (cmake/bundle/launch.in), possibly after an
  // emulator.
  char words[8192] = {};
  read_proc(pid, "cmdline", words);
  std::string_view rest(words, sizeof words);
  rest.remove_prefix(std::min(rest.size(), rest.find("--library-path")));
  for (int before = 0; before < 2; ++before) rest.remove_prefix(std::min(rest.size(), rest.find('\0') + 1));
  const std::string_view program = rest.substr(0, rest.find('\0'));
  return std::string(program.substr(program.rfind('/') + 1));
}

pid_t launcher_above(pid_t pid) {
  constexpr std::array<std::string_view, 6> programs{"mpirun", "mpiexec", "orte", "prte", "prun", "hydra"};
  while ((pid = parent_of(pid)) > 1) {
    const std::string name = name_of(pid);
    if (std::ranges::any_of(programs, [&](std::string_view program) { return name.starts_with(program); }))
      return pid;
  }
  return 0;
}

void install_handler(int signal, struct sigaction action, struct sigaction* previous) {
  stack_t stack{};
  ::sigaltstack(nullptr, &stack);
  if (stack.ss_flags & SS_DISABLE) {
    stack = {};
    stack.ss_sp = handler_stack.data();
    stack.ss_size = handler_stack.size();
    ::sigaltstack(&stack, nullptr);
  }
  action.sa_flags |= SA_RESTART | SA_ONSTACK;
  ::sigaction(signal, &action, previous);
}

}  // namespace lockstep::train
