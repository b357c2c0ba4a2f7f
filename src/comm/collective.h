// What a collective is, and the checks that every transport makes before it starts one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

/// Lies in shared memory: plain numbers.
struct Collective {
  enum class Kind : std::uint32_t { sum, reduce_scatter, all_gather };

  Kind kind = Kind::sum;
  DType dtype = DType::float32;
  DType comm_dtype = DType::float32;
  std::int32_t shards = 0;        ///< 0 for a gather
  std::uint64_t flat_buffer = 0;  ///< counted in the order allocated
  std::uint64_t offset_bytes = 0;
  std::int64_t count = 0;
  std::uint64_t slices = 0;  ///< their digest; 0 for a sum

  std::uint64_t signature() const;
};

/// "a reduce-scatter of 100 float32 elements at byte 64 of flat buffer 1 over 4 shards"; `other` decides
/// which of the finer points are shown: those in which the two differ.
std::string describe(const Collective& collective, const Collective& other);

/// A blocking gather.
struct GatherNote {
  enum class Kind : std::uint64_t { equal, unequal };

  Kind kind = Kind::equal;
  std::uint64_t bytes = 0;  ///< a rank's, or of all together
  std::uint64_t sizes = 0;  ///< digest of the ranks' bytes, where they differ
  bool operator==(const GatherNote&) const = default;
};

std::string describe(const GatherNote& gather);

/// Throws UsageError unless the elements are in the flat buffer.
void check_elements(const TreeSum& sum, int rank);
/// Throws UsageError unless this rank can take part in `sum` over `map`.
void check_tree_sum(const TreeSum& sum, const ShardMap& map, int rank, int size);
/// Throws UsageError unless `slices` share the elements among `size` ranks.
void check_slices(const TreeSum& vector, const Slices& slices, int rank, int size);
/// Throws UsageError unless there is a size for every rank.
void check_sizes(std::span<const std::size_t> bytes_of_rank, int rank, int size);
/// Collective. Throws UsageError, the same on all ranks, unless all want accumulators of one size, and any at
/// all.
void agree_on_buffer(HostGroup& group, std::size_t accumulator_bytes, int accumulators);

}  // namespace lockstep::comm
