// Shards made of numbers for which the order of additions matters, their serial sum, and checks against it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep::test {

/// A number of shard `shard`: magnitudes spread over 2^-10..2^10, so that another order gives other bits.
template <class T>
T value_of(std::uint64_t seed, int shard, std::int64_t element) {
  std::uint64_t x = seed + static_cast<std::uint64_t>(shard) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(element) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const double mantissa = static_cast<double>(static_cast<std::int64_t>(x)) * 0x1p-63;
  return static_cast<T>(std::ldexp(mantissa, static_cast<int>(x % 21) - 10));
}

template <class T>
T serial_sum(std::uint64_t seed, comm::ShardRange range, std::int64_t element) {
  return comm::fold_tree(
      range, [&](int shard) { return value_of<T>(seed, shard, element); }, [](T a, T b) { return a + b; });
}

/// One sum of a test: fills this rank's accumulators, and tells whether accumulator 0 holds the serial sum,
/// bit for bit.
template <class T>
struct SumCase {
  comm::TreeSum sum;
  int shards;
  std::uint64_t seed;

  T* elements(int accumulator) const {
    return reinterpret_cast<T*>(sum.flat_buffer->accumulator(accumulator) + sum.offset_bytes);
  }

  void fill(const comm::ShardMap& map, int rank) const {
    const auto subtrees = map.subtrees(rank);
    // A rank without shards, and accumulators beyond its sub-trees, hold what must not be added.
    for (int accumulator = 0; accumulator < sum.flat_buffer->accumulators(); ++accumulator) {
      for (std::int64_t i = 0; i < sum.count; ++i) {
        const bool used = accumulator < static_cast<int>(subtrees.size());
        elements(accumulator)[i] =
            used ? serial_sum<T>(seed, subtrees[static_cast<std::size_t>(accumulator)], i) : T(1e30);
      }
    }
  }
  /// The first element that differs from the serial sum, or -1.
  std::int64_t first_difference() const {
    for (std::int64_t i = 0; i < sum.count; ++i) {
      const T expected = serial_sum<T>(seed, {0, shards}, i);
      if (std::memcmp(&expected, &elements(0)[i], sizeof(T)) != 0) return i;
    }
    return -1;
  }
};

template <class T>
SumCase<T> make_case(comm::FlatBuffer& flat_buffer, std::size_t offset_bytes, std::int64_t count, int shards,
                     std::uint64_t seed) {
  return {{&flat_buffer, offset_bytes, count, dtype_of<T>}, shards, seed};
}

/// Accumulators that any rank may need for up to `shards` shards.
inline int accumulators_for(int shards, int ranks) {
  std::size_t accumulators = 1;
  for (int s = 1; s <= shards; ++s) {
    const comm::ShardMap map(s, ranks);
    for (int rank = 0; rank < ranks; ++rank) accumulators = std::max(accumulators, map.subtrees(rank).size());
  }
  return static_cast<int>(accumulators);
}

/// A seed that all ranks share, from rank 0.
inline std::uint64_t common_seed(comm::HostGroup& group) {
  std::uint64_t seed = std::random_device{}();
  group.broadcast(&seed, sizeof seed, 0);
  return seed;
}

}  // namespace lockstep::test
