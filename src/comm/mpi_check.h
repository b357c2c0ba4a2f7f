// Turns the error codes of MPI into FailureErrors.
#pragma once

#include <mpi.h>

#include <array>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::comm {

/// Throws FailureError with the call's name, MPI's own text and the rank unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call, int rank) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw FailureError(
      "{} failed on rank {}: {}", call, rank,
      length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : fmt::format("code {}", code));
}

}  // namespace lockstep::comm
