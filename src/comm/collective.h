// The description of a collective, and the checks of every transport before it starts one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/gradient_transport.h"

namespace lockstep::comm {

struct SumPlan;

/// The current call of a rank, from NamedCall.
struct CallName {
  std::uint64_t digest = 0;  ///< of the part that must be equal on all ranks
  char phrase[376] = {};     ///< follows "rank 0"; cut off if it is longer
};
/// Joins the phrases of a call and of one within it.
constexpr std::string_view within = ", in which it ";
/// Joins a call and its details.
constexpr std::string_view of = ": ";

/// A collective as the other ranks see it in shared memory: plain numbers.
struct Collective {
  enum class Kind : std::uint32_t {
    sum,
    reduce_scatter,
    all_gather,
    host_gather,          ///< HostGroup::all_gather
    unequal_host_gather,  ///< HostGroup::all_gather_unequal
    all_to_all,           ///< HostGroup::all_to_all, whose sizes only pairs of ranks know
    broadcast,
    barrier,
    split,
    wait,  ///< a wait for sums
  };

  Kind kind = Kind::sum;
  DType dtype = DType::float32;
  DType comm_dtype = DType::float32;
  std::int32_t shards = 0;  ///< 0 for a gather; of a broadcast: the root
  std::uint64_t flat_buffer =
      0;  ///< in the order of allocation; of host memory: number of sums started before
  std::uint64_t offset_bytes = 0;
  std::int64_t count = 0;    ///< elements; of host memory: bytes of a rank, or of all ranks if unequal
  std::uint64_t slices = 0;  ///< digest of the slices, or of the sizes of an unequal gather; 0 without
  CallName call = {};        ///< the enclosing call; sums and their halves have none

  bool on_host() const { return kind >= Kind::host_gather; }
  /// Different collectives have different signatures.
  std::uint64_t signature() const;
};

/// The difference, for an error: "rank 0 calls Store::save, but rank 1 calls load_weights; ...". `number` is
/// that of the collective. Details are shown if they differ.
std::string difference(std::uint64_t number, int rank, const Collective& collective, int other_rank,
                       const Collective& other);

/// Throws UsageError unless the elements are in the flat buffer.
void check_elements(const TreeSum& sum, int rank);
/// Throws UsageError unless this rank can take part in `sum` over `map`.
void check_tree_sum(const TreeSum& sum, const ShardMap& map, int rank, int size);
/// Throws UsageError unless the flat buffer has an accumulator for every partial sum of this rank.
void check_accumulators(const TreeSum& sum, const SumPlan& plan, int rank);
/// Throws UsageError unless `slices` divide the elements among `size` ranks.
void check_slices(const TreeSum& vector, const Slices& slices, int rank, int size);
/// Throws UsageError unless there is a size for every rank.
void check_sizes(std::size_t sizes, int rank, int size);
/// Throws UsageError unless the work handle is valid.
void check_started(Work work, Work last, int rank);
/// Collective. Throws UsageError, the same on all ranks, unless all request at least one accumulator, of the
/// same size.
void agree_on_buffer(HostGroup& group, std::size_t accumulator_bytes, int accumulators);

}  // namespace lockstep::comm
