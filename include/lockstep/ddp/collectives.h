// Collectives for programs: tensors and JSON values of all ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/kernels/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Every rank makes the same call. If ranks call different collectives, or with another shape, element type,
// operation or root, every rank throws the same UsageError, which shows two of the calls. (A rank that is
// elsewhere, for example in a step of DataParallel, is found like in collectives of the library: comm.)
//
// Tensors are in CPU memory or on the device of the context's backend, of any size, 0 elements included, and
// not in channel blocks. Results are on the device of the argument, and have the same bits on every rank.
// They take every DType, except for a mean, which is of floats.

/// The combination of all_reduce() and reduce().
/// Float sums follow the tree over ranks, like the gradients of DataParallel with one shard a rank, and have
/// the same bits in every run: through Context::transport() for float32 and float64 on a GPU (in NCCL's order
/// unless DeviceOptions::reproducible), otherwise in CPU memory. bfloat16 and float16 are summed in float32
/// and rounded once. Integers wrap around. A mean is the sum divided by the number of ranks. NaN wins in min
/// and max, as in PyTorch.
enum class ReduceOp { sum, mean, min, max };

/// Replaces the tensor by the combination over all ranks.
void all_reduce(Context& context, const Tensor& tensor, ReduceOp op = ReduceOp::sum);
/// The same for one number, in float64.
double all_reduce(Context& context, double value, ReduceOp op = ReduceOp::sum);
/// The same on rank `root` alone: the tensors of other ranks stay as they are.
void reduce(Context& context, const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum);

/// Replaces the tensor by that of rank `root`.
void broadcast(Context& context, const Tensor& tensor, int root = 0);
/// Divides the rows of the tensor of rank `root` in rank order, equally many for each rank; other ranks pass
/// none: scatter(context, Tensor()). UsageError if the number of ranks does not divide the rows. The whole
/// tensor passes through every rank, in pieces.
Tensor scatter(Context& context, const Tensor& tensor, int root = 0);
/// Joins the tensors of all ranks in rank order along the first dimension, in which they may differ; a scalar
/// is one row. The result is on rank `root`, and empty on other ranks.
Tensor gather(Context& context, const Tensor& tensor, int root = 0);
/// The same on every rank.
Tensor all_gather(Context& context, const Tensor& tensor);

/// Returns when every rank has called it. Devices may still be busy.
void barrier(Context& context);

// JSON values of any size; numbers arrive bit for bit, infinite ones and NaN too.

/// The value of rank `root`.
nlohmann::json broadcast(Context& context, const nlohmann::json& value, int root = 0);
/// Element r of the array of rank `root` goes to rank r. UsageError unless the array has one for each rank.
nlohmann::json scatter(Context& context, const std::vector<nlohmann::json>& values, int root = 0);
/// The values of all ranks in rank order on rank `root`; empty on other ranks.
std::vector<nlohmann::json> gather(Context& context, const nlohmann::json& value, int root = 0);
/// The same on every rank.
std::vector<nlohmann::json> all_gather(Context& context, const nlohmann::json& value);

}  // namespace lockstep
