// Private to the module: what stop requests and the watchdog share about signals; see stop.cpp.
#pragma once

#include <csignal>

namespace lockstep::train {

/// Installs a handler that runs on an alternate stack of the calling thread, which trains; interrupted calls
/// are restarted. oneDNN's matrix product (2.6.3, dnnl_sgemm) keeps data further below the stack pointer than
/// a handler on the usual stack leaves alone, which would corrupt memory.
void install_handler(int signal, struct sigaction action, struct sigaction* previous = nullptr);

/// Whether the launcher has sent SIGTERM to this rank: mpirun sends it to all ranks when one has died or when
/// it is told to end, and kills them a second later.
bool terminated_by_launcher();

/// Whether anybody else has sent SIGTERM. From Slurm this can mean two things: a request to stop, if all
/// ranks are alive to obey it, or the last warning before SIGKILL after a rank has died.
bool sigterm_received();

}  // namespace lockstep::train
