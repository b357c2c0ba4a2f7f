// Private to the room: the launcher (mpirun) above this process, whose signals are no requests.
#pragma once

namespace lockstep::train {

/// Whether the launcher has sent SIGTERM to this rank: mpirun does so to all when one has died, or when it is
/// told to end itself, and kills them a second later. Slurm's daemon is none: what it sends is a request.
bool ended_by_launcher();

}  // namespace lockstep::train
