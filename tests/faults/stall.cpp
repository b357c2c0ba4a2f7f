// A preloaded library that lets a thread be stuck forever: whoever takes the signal SIGRTMIN + 9 never goes
// on, while the rest of the process does. The program under test knows nothing of it.
#include <unistd.h>

#include <csignal>

namespace {

[[gnu::constructor]] void listen() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    for (;;) ::pause();
  };
  sigaction(SIGRTMIN + 9, &action, nullptr);
}

}  // namespace
