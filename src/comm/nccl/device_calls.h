// The calls that a collective on a GPU consists of: CUDA and NCCL carry them out, tests only record them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/sum_plan.h"
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
/// calls that involve other ranks, in the same order; the calls of a group run together.
class DeviceCalls {
 public:
  /// The most calls of one group: NCCL distinguishes 2048.
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

}  // namespace lockstep::comm
