#include "train/stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <time.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "train/signals.h"

namespace lockstep::train {
namespace {

constexpr int most_frames = 64;
constexpr double answer_time_s = 0.5;

// A signal handler reaches nothing else.
std::array<void*, most_frames> frames;
std::atomic<int> taken{-1};

int probe_signal() { return SIGRTMIN + 5; }

void on_probe(int) {
  const int error = errno;
  taken.store(::backtrace(frames.data(), most_frames), std::memory_order_release);
  errno = error;
}

std::string describe(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) return fmt::format("{}", address);
  const auto offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  const std::string place = fmt::format("{}+{:#x}", info.dli_fname, offset);
  if (!info.dli_sname) return place;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  return fmt::format("{} ({})", status == 0 ? name.get() : info.dli_sname, place);
}

}  // namespace

StackProbe::StackProbe() : thread_(pthread_self()) {
  ::backtrace(frames.data(), most_frames);  // loads what it needs now, not in the handler
  struct sigaction action {};
  action.sa_handler = on_probe;
  install_handler(probe_signal(), action);
}

StackProbe::~StackProbe() { std::signal(probe_signal(), SIG_IGN); }

std::string StackProbe::take() const {
  taken.store(-1);
  if (::pthread_kill(thread_, probe_signal()) != 0) return "  (no stack: the thread has ended)\n";
  constexpr timespec moment{0, 1'000'000};
  for (int i = 0; taken.load(std::memory_order_acquire) < 0; ++i) {
    if (i * 1e-3 > answer_time_s) return "  (no stack: the thread does not answer signals)\n";
    ::nanosleep(&moment, nullptr);
  }
  std::string text;
  constexpr int own_frames = 2;  // the handler and what the system put below it
  for (int i = own_frames; i < taken.load(); ++i)
    text += fmt::format("  #{} {}\n", i - own_frames, describe(frames[static_cast<std::size_t>(i)]));
  return text;
}

}  // namespace lockstep::train
