// DeviceCollectives: the calls that make up each collective on a GPU. CUDA and NCCL carry them out, tests
// only record them.
//
// In NCCL's own order a rank adds its accumulators, and NCCL does the rest: one all-reduce, or, where ranks
// own slices, a reduce and a broadcast for each range, in one group (one call where slices are even). These
// run along rings, so each byte enters a node once, however the slices are.
//
// In the tree's order every rank sends its partial sums of each slice straight to its owner, which adds all
// of them along the tree. That moves as many bytes as a ring, in one hop. Sixteen-bit partial sums are added
// in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/sum_plan.h"
#include "lockstep/comm/slices.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// A sum along the tree over consecutive elements. Sources and the sum may be the same memory, element for
/// element.
struct TreeAddition {
  const SumProgram* program = nullptr;
  const std::byte* accumulators = nullptr;  ///< the first element in accumulator 0
  std::size_t accumulator_bytes = 0;        ///< from an accumulator to the next
  const std::byte* slots = nullptr;  ///< the first element in slot 0, of `comm_dtype`; null without slots
  std::size_t slot_bytes = 0;        ///< from a slot to the next
  std::byte* sum = nullptr;          ///< in `dtype`
  std::byte* cast_sum = nullptr;     ///< the sum again in `comm_dtype`, or null
  std::int64_t count = 0;
  DType dtype = DType::float32;
  /// If it differs from dtype, values from accumulators are rounded to it first, and so is the sum.
  DType comm_dtype = DType::float32;
};

/// Calls run in order on one stream and return at once. All memory is the device's. All ranks make the same
/// collective calls in the same order; the calls of a group run together.
class DeviceCalls {
 public:
  /// Maximal number of calls of one group: NCCL distinguishes 2048.
  static constexpr int max_in_group = 1024;

  virtual ~DeviceCalls() = default;

  /// Memory for one collective, 256-byte aligned; a later call returns the same.
  virtual std::byte* scratch(std::size_t bytes) = 0;
  virtual void zero(std::byte* memory, std::size_t bytes) = 0;
  virtual void add(const TreeAddition& addition) = 0;
  /// float32 to `comm_dtype` (bfloat16 or float16), and back.
  virtual void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype) = 0;
  virtual void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype) = 0;

  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  /// Sums in place, in NCCL's order.
  virtual void all_reduce(std::byte* values, std::int64_t count, DType dtype) = 0;
  /// Rank r gets the sum of the r-th `count` elements, in place.
  virtual void reduce_scatter(std::byte* values, std::int64_t count, DType dtype) = 0;
  /// Only the root gets the sum, in place.
  virtual void reduce(std::byte* values, std::int64_t count, DType dtype, int root) = 0;
  /// Rank r contributes the r-th `bytes` bytes; all ranks get all, in place.
  virtual void all_gather(std::byte* data, std::size_t bytes) = 0;
  virtual void broadcast(std::byte* data, std::size_t bytes, int root) = 0;
  /// Only within a group. Messages from one rank to another arrive in the order sent.
  virtual void send(const std::byte* data, std::size_t bytes, int to) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from) = 0;
};

/// The operand of a collective on this rank.
struct DeviceVector {
  std::byte* values = nullptr;        ///< the first element in accumulator 0
  std::size_t accumulator_bytes = 0;  ///< from an accumulator to the next
  std::int64_t count = 0;             ///< elements
  DType dtype = DType::float32;
  DType comm_dtype = DType::float32;
};

/// The plan of a group of one rank, and the sum of its GPU in NCCL's own order.
struct DeviceSumPlan : SumPlan {
  DeviceSumPlan(const ShardMap& map, int rank);
  SumProgram own;  ///< the sum of this rank's accumulators, left to right
};

/// It allocates nothing after its largest collective so far.
class DeviceCollectives {
 public:
  /// reproducible: sums follow the tree's order. `calls` must outlive this.
  DeviceCollectives(DeviceCalls& calls, int rank, int ranks, bool reproducible);

  /// GradientTransport::start_tree_sum and its halves.
  void tree_sum(const DeviceVector& vector, const DeviceSumPlan& plan);
  void reduce_scatter(const DeviceVector& vector, const DeviceSumPlan& plan, const Slices& slices);
  void all_gather(const DeviceVector& vector, const Slices& slices);

 private:
  /// The owners of elements: `slices`, or even ones if null.
  struct Cut {
    const Slices* slices = nullptr;
    std::span<const ElementRange> even;  ///< by rank
    std::span<const ElementRange> of(int rank) const {
      return slices ? slices->of(rank) : even.subspan(static_cast<std::size_t>(rank), 1);
    }
  };

  Cut even_cut(std::int64_t count);
  /// The elements of each rank if ranks own equally many in rank order (the last may own a remainder as
  /// well); otherwise 0.
  std::int64_t even_part(const Cut& cut) const;
  std::size_t max_ranges(const Cut& cut) const;

  /// Adds this rank's accumulators into accumulator 0.
  void add_accumulators(const DeviceVector& vector, const DeviceSumPlan& plan);
  /// Reduces vectors to the owners of their elements, and gathers them from the owners.
  void reduce_to_owners(std::byte* values, DType dtype, const Cut& cut);
  void gather_from_owners(std::byte* values, std::size_t element_bytes, const Cut& cut);

  /// The partial sums that this rank sends.
  struct Partials {
    const std::byte* first = nullptr;  ///< the first element of partial sum 0
    std::size_t partial_bytes = 0;     ///< from a partial sum to the next
    std::size_t element_bytes = 0;
  };
  /// In the tree's order: afterwards accumulator 0 holds the sum of the elements that this rank owns.
  /// keep_cast: the returned scratch begins with the same in comm_dtype.
  std::byte* sum_at_owners(const DeviceVector& vector, const DeviceSumPlan& plan, const Cut& cut,
                           bool keep_cast);
  void trade_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut, std::byte* slots,
                      std::size_t slot_bytes);
  /// For the owner's ranges [begin, end).
  void send_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut, int to,
                     std::size_t begin, std::size_t end);
  void receive_partials(const Partials& partials, const DeviceSumPlan& plan, const Cut& cut, int from,
                        std::size_t begin, std::size_t end, std::byte* slots, std::size_t slot_bytes);

  DeviceCalls& calls_;
  int rank_;
  int ranks_;
  bool reproducible_;
  std::vector<ElementRange> even_;  ///< by rank
};

}  // namespace lockstep::comm
