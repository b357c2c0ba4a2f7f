// Signal handlers, on a stack of their own.
#pragma once

#include <csignal>

namespace lockstep::train {

/// Installs the handler, to run on an alternate stack of the calling thread, which trains; interrupted calls
/// continue. Not on that thread's own: oneDNN's products (2.6.3, dnnl_sgemm) have data further below the
/// stack pointer than a handler leaves alone, so that one which runs there amid a product corrupts memory.
void install_handler(int signal, struct sigaction action, struct sigaction* before = nullptr);

/// Whether the launcher has sent SIGTERM to this rank: mpirun does so to all when one has died, or when it is
/// told to end itself, and kills them a second later.
bool ended_by_launcher();

/// Whether SIGTERM has come from anybody else. From Slurm it may be either: a request, if all ranks are there
/// to obey it; where one has died, the last word before SIGKILL to those that are left.
bool told_to_end();

}  // namespace lockstep::train
