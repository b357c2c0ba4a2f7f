// Signal handlers, on a stack of their own.
#pragma once

#include <csignal>

namespace lockstep::train {

/// Installs the handler, to run on an alternate stack of the calling thread, which trains; interrupted calls
/// go on. Not on that thread's own: oneDNN's products (2.6.3, dnnl_sgemm) have data further below the stack
/// pointer than a handler leaves alone, so that one which runs there amid a product corrupts memory.
void install_handler(int signal, struct sigaction action, struct sigaction* before = nullptr);

}  // namespace lockstep::train
