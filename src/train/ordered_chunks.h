// Chunks of rows that ranks make in rounds, and rank 0 takes in their order.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/host_group.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/evaluate.h"

namespace lockstep::train {

/// What is made of which rows.
struct OrderedChunks {
  std::int64_t rows = 0;   ///< in all
  std::int64_t chunk = 1;  ///< rows of each chunk but the last
  std::int64_t steps = 1;  ///< that the making of a chunk has
  /// Rows `first` to `first` + `count`: float32 [count, ...] on the CPU, of the same shape but for the rows
  /// in all chunks. On one rank. `step` is called after each of `steps`, and may throw, which ends the work:
  /// it is passed on.
  std::function<Tensor(std::int64_t first, std::int64_t count, const std::function<void()>& step)> make;
  /// On rank 0, chunk after chunk.
  std::function<void(std::int64_t first, const Tensor& made)> take;
  /// After every step, on all ranks: those that make fewer steps take part all the same. Optional.
  EvaluationWatch watch{};

  std::int64_t chunks() const { return (rows + chunk - 1) / chunk; }
  /// Of a rank, the longest.
  std::int64_t rounds(const comm::HostGroup& world) const {
    return (chunks() + world.size() - 1) / world.size();
  }
};

/// Makes and takes all chunks. Memory of a rank: two chunks. False if the watch ended it. Collective; throws
/// on every rank what `make` throws on one or `take` on rank 0, UsageError if shapes differ.
///
/// Every chunk is broadcast, though rank 0 alone takes it (HostGroup has no gather to one rank): a rank
/// receives as many bytes as rank 0 does, and a round of R ranks has R broadcasts. Pictures and features are
/// kilobytes a row and take a network's evaluations to make, so that up to some hundreds of ranks the
/// broadcasts do not show.
bool run(comm::HostGroup& world, const OrderedChunks& chunks);

}  // namespace lockstep::train
