// Collectives for programs: tensors and JSON values of all ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/kernels/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Every rank makes the same call. If ranks call different collectives, or with another shape, element type,
// operation or root, every rank throws the same UsageError, which shows two of the calls. (A rank that is
// somewhere else, in a step of DataParallel say, is found as collectives of the library find it: comm.)
//
// Tensors are in CPU memory or on the device of the context's backend, of any size, 0 elements included, and
// not in channel blocks. Results are on the device of the tensor that is given, and have the same bits on
// every rank. They take every DType, except for a mean, which is of floats.

/// What all_reduce() and reduce() make of the values of the ranks.
///
/// Float sums follow the tree over ranks, as the gradients of DataParallel with one shard a rank do, so that
/// they have the same bits in every run: through Context::transport() for float32 and float64 on a GPU (in
/// NCCL's order unless DeviceOptions::reproducible), otherwise in CPU memory. bfloat16 and float16 are summed
/// in float32 and rounded once. Integers wrap around. A mean is the sum divided by the number of ranks. NaN
/// wins in min and max, as in PyTorch.
enum class ReduceOp { sum, mean, min, max };

/// Replaces the tensor by the combination over all ranks.
void all_reduce(Context& context, const Tensor& tensor, ReduceOp op = ReduceOp::sum);
/// The same for one number, in float64.
double all_reduce(Context& context, double value, ReduceOp op = ReduceOp::sum);
/// The same on rank `root` alone: the tensors of other ranks stay as they are.
void reduce(Context& context, const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum);

/// Replaces the tensor by that of rank `root`.
void broadcast(Context& context, const Tensor& tensor, int root = 0);
/// The rows of the tensor of rank `root`, shared out in rank order, equally many to each rank; other ranks
/// give none: scatter(context, Tensor()). UsageError if the ranks do not divide the rows. All of the tensor
/// passes through every rank, in pieces.
Tensor scatter(Context& context, const Tensor& tensor, int root = 0);
/// The tensors of all ranks in rank order, joined along the first dimension, in which they may differ; a
/// scalar is one row. On rank `root`; no tensor on other ranks.
Tensor gather(Context& context, const Tensor& tensor, int root = 0);
/// The same on every rank.
Tensor all_gather(Context& context, const Tensor& tensor);

/// Returns when every rank has called it. Devices may still be at work.
void barrier(Context& context);

// JSON values of any size; numbers arrive bit for bit, infinite ones and NaN too.

/// The value of rank `root`.
nlohmann::json broadcast(Context& context, const nlohmann::json& value, int root = 0);
/// Element r of the array of rank `root` goes to rank r. UsageError unless it has one for each rank.
nlohmann::json scatter(Context& context, const std::vector<nlohmann::json>& values, int root = 0);
/// The values of all ranks in rank order on rank `root`; empty on other ranks.
std::vector<nlohmann::json> gather(Context& context, const nlohmann::json& value, int root = 0);
/// The same on every rank.
std::vector<nlohmann::json> all_gather(Context& context, const nlohmann::json& value);

}  // namespace lockstep
