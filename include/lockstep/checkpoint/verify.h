// Verify: is a checkpoint whole, and does every byte fit its digest?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

struct VerifyReport {
  std::string path;
  std::vector<std::string> problems;  ///< one line each; empty: whole, and all digests right
  std::int64_t step = 0;
  std::int64_t tensors = 0;
  std::uint64_t payload_bytes = 0;

  bool whole() const { return problems.empty(); }
};

/// Reads everything. Collective; ranks share the reading, and the report is the same on all. A bad file is a
/// report, not an exception; failing storage (EIO) throws FailureError.
VerifyReport verify(const std::string& path, comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
