// Private to the room: a SharedFile on MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "lockstep/comm/shared_file.h"

namespace lockstep::comm {

/// Opens a file that exists, for writing. Collective over `comm`.
std::unique_ptr<SharedFile> open_mpi_file(MPI_Comm comm, const std::string& path);

}  // namespace lockstep::comm
