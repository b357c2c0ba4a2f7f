// Whether a test program can run on this machine, and what carries its sums.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep::test {

/// Why this program cannot run here, the same on all ranks; empty: it can.
std::string reason_to_skip();

/// What the cases get as their world() in place of MPI's; none: that one. Collective.
std::unique_ptr<comm::CpuCommunicator> transport_over(comm::CpuCommunicator& mpi);

}  // namespace lockstep::test
