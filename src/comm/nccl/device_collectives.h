// Which calls of a GPU each collective is made of.
//
// In NCCL's own order a rank adds its planes, and NCCL does the rest: one all-reduce, or, where ranks own
// slices, a reduce and a broadcast for each range, in one group (one call where slices are even). These run
// along rings, so each byte enters a machine once, whatever slices look like.
//
// In the tree's order every rank sends its partial sums of each slice straight to its owner, who adds all of
// them along the tree. That is as many bytes as a ring moves in all, in one hop. Sixteen-bit partial sums are
// added in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/nccl/device_calls.h"
#include "comm/nccl/tree_program.h"
#include "lockstep/comm/slices.h"

namespace lockstep::comm {

/// What a collective works on, on this rank.
struct DeviceVector {
  std::byte* values = nullptr;  ///< the first element in plane 0
  std::size_t plane_bytes = 0;  ///< from a plane to the next
  std::int64_t count = 0;       ///< elements
  DType dtype = DType::float32;
  DType comm_dtype = DType::float32;
};

/// Once it has met its largest collective it allocates nothing.
class DeviceCollectives {
 public:
  /// reproducible: sums are made in the tree's order. `calls` must outlive this.
  DeviceCollectives(DeviceCalls& calls, int rank, int ranks, bool reproducible);

  /// HostGroup::start_tree_sum and its halves, with their meaning.
  void tree_sum(const DeviceVector& vector, const PartialPlan& plan);
  void reduce_scatter(const DeviceVector& vector, const PartialPlan& plan, const Slices& slices);
  void all_gather(const DeviceVector& vector, const Slices& slices);

 private:
  /// Who owns what: given slices, or even ones.
  struct Cut {
    const Slices* slices = nullptr;
    std::span<const ElementRange> even;  ///< by rank
    std::span<const ElementRange> of(int rank) const {
      return slices ? slices->of(rank) : even.subspan(static_cast<std::size_t>(rank), 1);
    }
  };

  Cut even_cut(std::int64_t count);
  /// The elements each rank owns if the r-th so many are rank r's, but for a rest that is the last rank's;
  /// else 0.
  std::int64_t even_part(const Cut& cut) const;
  std::size_t most_ranges(const Cut& cut) const;

  /// This rank's planes added into plane 0.
  void add_planes(const DeviceVector& vector, const PartialPlan& plan);
  /// Vectors reduced to the owners of their elements, and back to all.
  void reduce_to_owners(std::byte* values, DType dtype, const Cut& cut);
  void gather_from_owners(std::byte* values, std::size_t element_bytes, const Cut& cut);

  /// What this rank sends of its planes.
  struct Partials {
    const std::byte* first = nullptr;  ///< the first element of partial sum 0
    std::size_t partial_bytes = 0;     ///< from a partial sum to the next
    std::size_t element_bytes = 0;
  };
  /// In the tree's order: afterwards plane 0 holds the sum of what this rank owns. keep_cast: so does a
  /// vector in the wire's type at the start of the scratch that is returned.
  std::byte* sum_at_owners(const DeviceVector& vector, const PartialPlan& plan, const Cut& cut,
                           bool keep_cast);
  void trade_partials(const Partials& partials, const PartialPlan& plan, const Cut& cut, std::byte* slots,
                      std::size_t slot_bytes);
  /// Of the ranges [begin, end) of whoever owns them.
  void send_partials(const Partials& partials, const PartialPlan& plan, const Cut& cut, int to,
                     std::size_t begin, std::size_t end);
  void receive_partials(const Partials& partials, const PartialPlan& plan, const Cut& cut, int from,
                        std::size_t begin, std::size_t end, std::byte* slots, std::size_t slot_bytes);

  DeviceCalls& calls_;
  int rank_;
  int ranks_;
  bool reproducible_;
  std::vector<ElementRange> even_;  ///< by rank
};

}  // namespace lockstep::comm
