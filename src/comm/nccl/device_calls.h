// What a collective asks a GPU for. CUDA and NCCL do it; a test notes it for many ranks and does none of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/nccl/tree_program.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// A sum along the tree over consecutive elements. Sources and the sum may be the same memory, element for
/// element.
struct TreeAddition {
  const TreeProgram* program = nullptr;
  const std::byte* planes = nullptr;  ///< the first element in plane 0
  std::size_t plane_bytes = 0;        ///< from a plane to the next
  const std::byte* slots = nullptr;   ///< the first element in slot 0; slots hold `comm_dtype`
  std::size_t slot_bytes = 0;         ///< from a slot to the next
  std::byte* sum = nullptr;           ///< in `dtype`
  std::byte* cast_sum = nullptr;      ///< the sum again in `comm_dtype`, or null
  std::int64_t count = 0;
  DType dtype = DType::float32;
  /// Another type than dtype: what is taken from planes is rounded to it first, and so is the sum.
  DType comm_dtype = DType::float32;
};

/// Calls are carried out in order, on one stream; none waits for that. All memory is the device's. Calls with
/// other ranks in them are the same on all ranks, in the same order; what a group holds happens at once.
class DeviceCalls {
 public:
  /// Calls of one group at most: NCCL keeps 2048 of them apart.
  static constexpr int most_in_group = 1024;

  virtual ~DeviceCalls() = default;

  /// Memory for what is only of use within one collective, 256-byte aligned; a later call gives the same.
  virtual std::byte* scratch(std::size_t bytes) = 0;
  virtual void zero(std::byte* memory, std::size_t bytes) = 0;
  virtual void add(const TreeAddition& addition) = 0;
  /// float32 to `comm_dtype` (bfloat16 or float16), and back.
  virtual void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype) = 0;
  virtual void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype) = 0;

  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  /// Sums in place, in an order of NCCL's own.
  virtual void all_reduce(std::byte* values, std::int64_t count, DType dtype) = 0;
  /// Rank r gets the sum of the r-th `count` elements, in place.
  virtual void reduce_scatter(std::byte* values, std::int64_t count, DType dtype) = 0;
  /// Only the root gets the sum, in place.
  virtual void reduce(std::byte* values, std::int64_t count, DType dtype, int root) = 0;
  /// The r-th `bytes` bytes are rank r's; all get all, in place.
  virtual void all_gather(std::byte* data, std::size_t bytes) = 0;
  virtual void broadcast(std::byte* data, std::size_t bytes, int root) = 0;
  /// Only within a group. What one rank sends to another arrives in the order sent.
  virtual void send(const std::byte* data, std::size_t bytes, int to) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from) = 0;
};

}  // namespace lockstep::comm
