#include "train/signals.h"

#include <array>
#include <cstddef>

namespace lockstep::train {
namespace {

// For good, as handlers are: of the one thread that installs them.
alignas(64) std::array<std::byte, 256 * 1024> stack;

}  // namespace

void install_handler(int signal, struct sigaction action, struct sigaction* before) {
  stack_t there{};
  ::sigaltstack(nullptr, &there);
  if (there.ss_flags & SS_DISABLE) {
    there = {};
    there.ss_sp = stack.data();
    there.ss_size = stack.size();
    ::sigaltstack(&there, nullptr);
  }
  action.sa_flags |= SA_RESTART | SA_ONSTACK;
  ::sigaction(signal, &action, before);
}

}  // namespace lockstep::train
