// What an exchange is, as ranks compare it: ranks of a node must start the same ones in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Lies in shared memory: plain numbers.
struct Exchange {
  enum class Kind : std::uint32_t { sum, reduce_scatter, all_gather };

  Kind kind = Kind::sum;
  DType dtype = DType::float32;
  DType wire = DType::float32;
  std::int32_t shards = 0;  ///< 0 for a gather
  std::uint64_t arena = 0;  ///< counted in the order allocated
  std::uint64_t offset_bytes = 0;
  std::int64_t count = 0;
  std::uint64_t slices = 0;  ///< their digest; 0 for a sum

  std::uint64_t signature() const;
};

/// "a reduce-scatter of 100 float32 elements at byte 64 of arena 1 over 4 shards"; `other` decides which of
/// the finer points are shown: those in which the two differ.
std::string describe(const Exchange& exchange, const Exchange& other);

/// A blocking gather.
struct GatherNote {
  enum class Kind : std::uint64_t { equal, unequal };

  Kind kind = Kind::equal;
  std::uint64_t bytes = 0;  ///< a rank's, or of all together
  std::uint64_t sizes = 0;  ///< digest of the ranks' bytes, where they differ
  bool operator==(const GatherNote&) const = default;
};

std::string describe(const GatherNote& gather);

}  // namespace lockstep::comm
