// Functions of .cu files that other files use. They neither wait nor allocate.
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>
#include <span>

#include "lockstep/base/random.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"

namespace lockstep::kernels {

struct Launch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
};

/// The random numbers of a kernel. In a graph they are those of the step of a launch. part: of an operation
/// that runs in parts, whose shard is as many further on.
struct KernelRandom {
  Random random;
  const std::uint64_t* step;  ///< on the device; null: that of `random`
  constexpr Random get(std::uint32_t part) const {
    return (step ? random.at_step(*step) : random).shards_on(part);
  }
};

// --- elementwise.cu
/// *to = value
void store(const Launch& on, std::uint64_t value, std::uint64_t* to);
/// Copies elements in order, rounded to `to`'s type; false if that conversion is not supported.
bool convert(const Launch& on, const Tensor& from, const Tensor& to);

// --- strided_copy.cu
/// Each of `count` matrices [rows, columns] becomes [columns, rows]. Float32 or bf16.
void transpose(const Launch& on, const Tensor& from, const Tensor& to, std::int64_t count, std::int64_t rows,
               std::int64_t columns);

// --- packed_weights.cu
/// ops::PackWeights: one launch for a few hundred weights.
void pack_weights(const Launch& on, std::span<const ops::PackedWeight> weights);
/// dweight (+)= sums, in one launch. dweight: float32 [O, C, kh, kw], or [parts, O, C, kh, kw]. sums: [parts,
/// at least an element for each weight], bf16 or float32, rows [O, kh, kw, C] if channels_last.
void unpack_weights(const Launch& on, const Tensor& sums, const Tensor& dweight, bool channels_last,
                    bool accumulate);

// --- batch_norm.cu
/// y += the bias of its channel.
void add_channels(const Launch& on, const Tensor& bias, const Tensor& y);

// --- data_check.cu
/// An error in data, which the next read throws. Zeros: no error.
struct DataFault {
  enum Kind : std::int32_t { none, index_outside, target_outside, counts_differ };
  std::int32_t kind = none;
  const char* operation = nullptr;  ///< a string literal, which no GPU reads
  std::int64_t value = 0, number = 0, bound = 0;
};
constexpr int max_check_blocks = 1024;
/// The bytes of a fault, followed by the result of each block of a check.
constexpr std::int64_t fault_bytes = sizeof(DataFault) + max_check_blocks * sizeof(std::int64_t);
inline std::int64_t* firsts_of(DataFault* fault) { return reinterpret_cast<std::int64_t*>(fault + 1); }
/// Writes the first of the int64 values outside [0, bound) that is not `ignored` (null: none is ignored) to
/// `fault`, if that has no error yet. values: of the first of `parts`; the number of a value is that in its
/// part.
void check_data(const Launch& on, const Tensor& values, std::int64_t bound, const std::int64_t* ignored,
                DataFault::Kind kind, const char* operation, DataFault* fault, int parts = 1);

// --- attention.cu
struct HeadMatrix {
  void* data;
  ops::HeadStrides strides;
};
struct AttentionMatrices {
  HeadMatrix q, k, v, y;
  float* log_sum_exp;                       ///< [batch, heads, queries], or null: there is no backward
  const std::int64_t* positions = nullptr;  ///< of ops::Attention, or null
  const float* bias = nullptr;              ///< the same
  ops::HeadStrides bias_strides = {};
};
struct AttentionGradients {
  HeadMatrix dy, dq, dk, dv;
  float* delta;            ///< of log_sum_exp's shape
  float* dbias = nullptr;  ///< of ops::AttentionBackward, or null
};
/// For heads of width 256 at most.
void attend(const Launch& on, DType dtype, const ops::AttentionSizes& sizes,
            const AttentionMatrices& matrices);
void attend_backward(const Launch& on, DType dtype, const ops::AttentionSizes& sizes,
                     const AttentionMatrices& matrices, const AttentionGradients& gradients);

}  // namespace lockstep::kernels
