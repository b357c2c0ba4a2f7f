// Chunks of rows that ranks make in rounds, and rank 0 takes in their order.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/host_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::train {

/// What is made of which rows.
struct OrderedChunks {
  std::int64_t rows = 0;   ///< in all
  std::int64_t chunk = 1;  ///< rows of each chunk but the last
  /// Rows `first` to `first` + `count`: float32 [count, ...] on the CPU, of the same shape but for the rows
  /// in all chunks. On one rank.
  std::function<Tensor(std::int64_t first, std::int64_t count)> make;
  /// On rank 0, chunk after chunk.
  std::function<void(std::int64_t first, const Tensor& made)> take;
  /// On every rank between rounds, of which each rank makes a chunk in each; false ends the work. Collective.
  std::function<bool()> go_on{};

  std::int64_t chunks() const { return (rows + chunk - 1) / chunk; }
  /// Of a rank, the longest.
  std::int64_t rounds(const comm::HostGroup& world) const {
    return (chunks() + world.size() - 1) / world.size();
  }
};

/// Makes and takes all chunks. Memory of a rank: two chunks. False if go_on() ended it. Collective; throws on
/// every rank what `make` throws on one or `take` on rank 0, UsageError if shapes differ.
bool run(comm::HostGroup& world, const OrderedChunks& chunks);

}  // namespace lockstep::train
