// An MPI communicator with an owner.
#pragma once

#include <mpi.h>

#include <exception>

namespace lockstep::comm {

/// Its errors come back as codes.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm) : comm_(comm) { MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); }
  ~OwnedComm() {
    // Collective, so not while an exception unwinds: the peers may be elsewhere.
    if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

}  // namespace lockstep::comm
