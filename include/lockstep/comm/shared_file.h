// SharedFile: one file that the ranks of a group write together, through MPI's own file calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

/// Made by Communicator::open_shared_file. Destroying it is collective, unless an exception unwinds.
class SharedFile {
 public:
  virtual ~SharedFile() = default;
  /// Each rank for itself. Any number of bytes; returns how many of them, from the first on, were written.
  /// MPI does not say why it wrote fewer: whoever writes the rest without it finds out.
  virtual std::uint64_t write_at(std::uint64_t offset, const void* data, std::uint64_t bytes) = 0;
  /// Collective: what any rank wrote is on storage when it returns. Failures throw as those of the system's
  /// calls do (base/system_error.h).
  virtual void sync() = 0;
};

}  // namespace lockstep::comm
