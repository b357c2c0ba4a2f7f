#include "train/watch/probes.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "base/processor.h"
#include "base/thread.h"
#include "train/watch/processes.h"

namespace lockstep::train {
namespace {

constexpr int max_frames = 128;
constexpr double stack_timeout_s = 0.5;

struct AddressRange {
  std::uintptr_t begin = 0, end = 0;
  bool contains(std::uintptr_t address) const { return address >= begin && address < end; }
};

// Global, as a signal handler has no other access.
std::array<void*, max_frames> frames;
std::atomic<int> frames_kept{0};  // 0: none
int frames_unwound = 0;           // the first ones; the others were found on the stack
void* interrupted = nullptr;      // the interrupted address: one of the frames
pthread_t probed{};
AddressRange probed_stack;
std::vector<AddressRange> code_of_files;  // files loaded at the construction of the probe

int stack_signal() { return SIGRTMIN + 5; }

void on_stack_signal(int, siginfo_t*, void* context) { StackProbe::keep(context); }

AddressRange own_stack() {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* lowest = nullptr;
  std::size_t bytes = 0;
  ::pthread_attr_getstack(&attributes, &lowest, &bytes);
  ::pthread_attr_destroy(&attributes);
  const auto begin = reinterpret_cast<std::uintptr_t>(lowest);
  return {begin, begin + bytes};
}

std::vector<AddressRange> loaded_code() {
  std::vector<AddressRange> ranges;
  ::dl_iterate_phdr(
      [](dl_phdr_info* file, std::size_t, void* data) {
        for (const auto& segment : std::span(file->dlpi_phdr, file->dlpi_phnum)) {
          if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = file->dlpi_addr + segment.p_vaddr;
          static_cast<std::vector<AddressRange>*>(data)->push_back({begin, begin + segment.p_memsz});
        }
        return 0;
      },
      &ranges);
  return ranges;
}

bool is_in_a_file(std::uintptr_t address) {
  return std::ranges::any_of(code_of_files, [&](const AddressRange& code) { return code.contains(address); });
}

bool is_return_address(std::uintptr_t address) {
  return is_in_a_file(address) && is_in_a_file(address - max_call_bytes) &&
         is_after_call(reinterpret_cast<const std::uint8_t*>(address));
}

/// Return addresses lie between variables, which AddressSanitizer guards.
[[gnu::no_sanitize_address]] std::uintptr_t word_at(std::uintptr_t address) {
  return *reinterpret_cast<const volatile std::uintptr_t*>(address);
}

constexpr std::uintptr_t word_bytes = sizeof(std::uintptr_t);

/// A possible beginning of the caller's part of the stack. Generated code, as of oneDNN, has no information
/// to unwind its frame. A matrix product points the stack pointer at a large buffer, on the stack or on the
/// heap, and saves the old pointer at the beginning of the buffer: above it are saved registers and a return
/// address.
std::uintptr_t end_of_generated_frame(std::uintptr_t stack_pointer) {
  constexpr std::uintptr_t searched_bytes = 256, saved_registers_bytes = 128;
  const bool on_stack = probed_stack.contains(stack_pointer);
  std::uintptr_t end = probed_stack.end;
  for (std::uintptr_t offset = 0; offset < searched_bytes; offset += word_bytes) {
    if (on_stack && !probed_stack.contains(stack_pointer + offset + word_bytes)) break;
    const std::uintptr_t kept = word_at(stack_pointer + offset);
    if (kept % word_bytes != 0 || (on_stack && kept <= stack_pointer) || !probed_stack.contains(kept) ||
        !probed_stack.contains(kept + saved_registers_bytes))
      continue;
    for (std::uintptr_t at = kept; at < kept + saved_registers_bytes && kept < end; at += word_bytes)
      if (is_return_address(word_at(at))) end = kept;
  }
  return end == probed_stack.end && on_stack ? stack_pointer : end;
}

/// Adds the return addresses on the stack to the frames.
int add_return_addresses(const Interruption& at_signal, int count) {
  if (is_return_address(at_signal.return_address))
    frames[static_cast<std::size_t>(count++)] = reinterpret_cast<void*>(at_signal.return_address);
  for (std::uintptr_t at = end_of_generated_frame(at_signal.stack_pointer);
       at + word_bytes <= probed_stack.end && count < max_frames; at += word_bytes)
    if (is_return_address(word_at(at)))
      frames[static_cast<std::size_t>(count++)] = reinterpret_cast<void*>(word_at(at));
  return count;
}

std::string describe(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) return fmt::format("{}", address);
  const auto offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  const std::string location = fmt::format("{}+{:#x}", info.dli_fname, offset);
  if (!info.dli_sname) return location;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  return fmt::format("{} ({})", status == 0 ? name.get() : info.dli_sname, location);
}

}  // namespace

StackProbe::StackProbe() : thread_(pthread_self()) {
  ::backtrace(frames.data(), max_frames);  // loads its library here, not in the handler
  frames_kept = 0;
  probed = thread_;
  probed_stack = own_stack();
  code_of_files = loaded_code();
  struct sigaction action {};
  action.sa_sigaction = on_stack_signal;
  action.sa_flags = SA_SIGINFO;
  install_handler(stack_signal(), action);
}

StackProbe::~StackProbe() { std::signal(stack_signal(), SIG_IGN); }

void StackProbe::keep(const void* context) noexcept {
  if (pthread_self() != probed || frames_kept.load(std::memory_order_acquire) > 0) return;
  const int error = errno;
  const Interruption at_signal = interruption_of(context);
  interrupted = at_signal.instruction;
  frames_unwound = ::backtrace(frames.data(), max_frames);
  int count = frames_unwound;
  if (count > 0 && frames[static_cast<std::size_t>(count - 1)] == interrupted)
    count = add_return_addresses(at_signal, count);
  frames_kept.store(count, std::memory_order_release);
  errno = error;
}

std::string StackProbe::take() const {
  if (frames_kept.load(std::memory_order_acquire) == 0 && ::pthread_kill(thread_, stack_signal()) != 0)
    return "  (no stack: the thread has ended)\n";
  constexpr timespec millisecond{0, 1'000'000};
  for (int i = 0; frames_kept.load(std::memory_order_acquire) == 0; ++i) {
    if (i * 1e-3 > stack_timeout_s) return "  (no stack: the thread does not answer signals)\n";
    ::nanosleep(&millisecond, nullptr);
  }
  const auto end = frames.begin() + frames_kept;
  // The frames before it are the handler and the system's call of it.
  const auto first = std::find(frames.begin(), end, interrupted);
  std::string text;
  for (auto frame = first; frame != end; ++frame) {
    if (frame == frames.begin() + frames_unwound)
      text += "  (its frame cannot be unwound; from here on, return addresses on the stack)\n";
    text += fmt::format("  #{} {}\n", frame - first, describe(*frame));
  }
  frames_kept.store(0, std::memory_order_release);
  return text;
}

struct TransportProbe::Questions {
  std::mutex mutex;  // not held during a query of the transport
  std::condition_variable changed;
  std::string error;
  bool stop = false, ended = false;

  void ask(const comm::GradientTransport& transport, double interval_s) {
    std::unique_lock lock(mutex);
    while (!stop) {
      lock.unlock();
      std::string answer = transport.async_error();
      lock.lock();
      error = std::move(answer);
      changed.wait_for(lock, std::chrono::duration<double>(interval_s), [this] { return stop; });
    }
    ended = true;
    changed.notify_all();
  }
};

void TransportProbe::watch(const comm::GradientTransport* transport) {
  stop();
  if (!transport) return;
  const auto questions = std::make_shared<Questions>();
  thread_ = start_background_thread(
      "the watchdog of the transport",
      [questions, transport, interval_s = interval_s_] { questions->ask(*transport, interval_s); });
  const std::lock_guard lock(mutex_);
  questions_ = questions;
}

std::string TransportProbe::error() const {
  const std::lock_guard lock(mutex_);
  if (!questions_) return {};
  const std::lock_guard answer_lock(questions_->mutex);
  return questions_->error;
}

void TransportProbe::stop() {
  if (!thread_.joinable()) return;
  bool ended = false;
  {
    std::unique_lock lock(questions_->mutex);
    questions_->stop = true;
    questions_->changed.notify_all();
    ended = questions_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s_),
                                         [this] { return questions_->ended; });
  }
  if (ended)
    thread_.join();
  else
    thread_.detach();
  const std::lock_guard lock(mutex_);
  questions_.reset();
}

}  // namespace lockstep::train
