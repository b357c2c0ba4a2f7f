// What a sum between GPUs must be.
#pragma once

#include <cmath>

#include "comm/sums.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::test {

inline float rounded_to(DType comm_dtype, float x) {
  if (comm_dtype == DType::bfloat16) return from_bfloat16_bits(bfloat16_bits(x));
  if (comm_dtype == DType::float16) return from_float16_bits(float16_bits(x));
  return x;
}
inline double rounded_to(DType, double x) { return x; }

template <class T>
T partial_sum_sent_as(DType comm_dtype, std::uint64_t seed, const comm::ShardMap& map, comm::ShardRange node,
                      std::int64_t element) {
  if (map.owner(node.first) == map.owner(node.end() - 1))
    return rounded_to(comm_dtype, serial_sum<T>(seed, node, element));
  const int left = comm::left_leaves(node.count);
  return partial_sum_sent_as<T>(comm_dtype, seed, map, {node.first, left}, element) +
         partial_sum_sent_as<T>(comm_dtype, seed, map, {node.first + left, node.count - left}, element);
}

/// In the tree's order: as CPUs make it with a node a rank. Each rank's partial sums are rounded, and so is
/// the result. With a wire of float32 that is the serial fold.
template <class T>
T sum_sent_as(DType comm_dtype, std::uint64_t seed, const comm::ShardMap& map, std::int64_t element) {
  return rounded_to(comm_dtype, partial_sum_sent_as<T>(comm_dtype, seed, map, {0, map.shards()}, element));
}

/// In any other order a sum is at most this far away, times the sum of magnitudes.
inline double relative_error(DType comm_dtype) {
  return comm_dtype == DType::bfloat16 ? 0x1p-5 : comm_dtype == DType::float16 ? 0x1p-8 : 1e-5;
}
template <class T>
double sum_of_magnitudes(std::uint64_t seed, int shards, std::int64_t element) {
  double sum = 0;
  for (int shard = 0; shard < shards; ++shard)
    sum += std::abs(static_cast<double>(value_of<T>(seed, shard, element)));
  return sum;
}

}  // namespace lockstep::test
