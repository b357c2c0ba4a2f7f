// The world of an MPI test program, made once by mpi_main.cpp.
#pragma once

#include "lockstep/comm/communicator.h"
#include "support/ranks.h"

namespace lockstep::test {

/// The communicator over all ranks of this test program.
comm::CpuCommunicator& world();

}  // namespace lockstep::test
