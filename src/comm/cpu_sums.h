// CPU arithmetic of sums: additions along the tree, and casts to the 16-bit communication dtypes and back.
// nccl/kernels.h has the same for GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/sum_plan.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::comm {

/// Scratch memory that add_along_tree() needs for a program of this depth.
std::size_t scratch_bytes(int depth);

/// Writes the program's sum of `count` elements to every destination (one at least), block by block so that
/// intermediate sums stay in cache. sources: those of the steps, in their order. dtype is float32 or float64.
/// The last addition writes to the destinations directly: through a scratch block it took twice as long
/// within the L3 cache (4 MiB at 2 ranks: 0.18 ms against 0.08) and 1.15 times beyond. Non-temporal stores do
/// not pay (0.67 ms; 100 MiB: 11.3 ms against 9.3), as the lines have been read before. Sources and
/// destinations may be the same memory, element for element. scratch: 64-byte aligned.
void add_along_tree(const SumProgram& program, DType dtype, std::int64_t count,
                    std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                    std::byte* scratch);

/// Rounds `count` float32 values to `comm_dtype` (bfloat16 or float16). The result may overwrite
/// the first half of their memory.
void cast_to(const std::byte* values, std::byte* cast, std::int64_t count, DType comm_dtype);
/// Rounds float32 values in place.
void round_to(DType comm_dtype, std::byte* values, std::int64_t count);
/// The inverse of cast_to. The cast values may fill the second half of the memory of the result.
void cast_from(const std::byte* cast, std::byte* values, std::int64_t count, DType comm_dtype);

}  // namespace lockstep::comm
