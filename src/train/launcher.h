// Private to the room: SIGTERM, which is a request to stop, or what ends the rest of a job that lost a rank.
#pragma once

namespace lockstep::train {

/// Whether the launcher has sent SIGTERM to this rank: mpirun does so to all when one has died, or when it is
/// told to end itself, and kills them a second later.
bool ended_by_launcher();

/// Whether SIGTERM has come from anybody else. From Slurm it may be either: a request, if all ranks are there
/// to obey it; where one has died, the last word before SIGKILL to those that are left.
bool told_to_end();

}  // namespace lockstep::train
