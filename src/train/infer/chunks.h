// Work on chunks of rows that ranks share, in rounds between which they agree on going on.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "lockstep/comm/host_group.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/evaluate.h"

namespace lockstep::train {

/// Rounds in which every rank does a part of its own.
struct Rounds {
  std::int64_t rounds = std::numeric_limits<std::int64_t>::max();  ///< by default until the watch ends them
  std::int64_t steps = 1;                                          ///< of the longest part
  /// This rank's part. Calls `step` after each of at most `steps`, the last one aside: it may throw, which
  /// ends the work, and is passed on.
  std::function<void(std::int64_t round, const std::function<void()>& step)> make;
  /// After every step, on all ranks: those whose part has fewer take part all the same. Optional.
  EvaluationWatch watch{};
  /// After each round, on all ranks. Collective. Optional.
  std::function<void(std::int64_t round)> after{};
};

/// False, on every rank, if the watch ended the work before its end. Collective; throws on every rank what
/// `make` throws on one.
bool run(comm::HostGroup& world, const Rounds& work);

/// Chunks that ranks make in rounds, and rank 0 takes in their order.
struct OrderedChunks {
  std::int64_t rows = 0;   ///< in all
  std::int64_t chunk = 1;  ///< rows of each chunk but the last
  std::int64_t steps = 1;  ///< that the making of a chunk has
  /// Rows `first` to `first` + `count`: float32 [count, ...] on the CPU, of the same shape but for the rows
  /// in all chunks. On one rank. `step` as that of Rounds::make.
  std::function<Tensor(std::int64_t first, std::int64_t count, const std::function<void()>& step)> make;
  /// On rank 0, chunk after chunk.
  std::function<void(std::int64_t first, const Tensor& rows)> take;
  EvaluationWatch watch{};  ///< Rounds::watch

  std::int64_t chunks() const { return (rows + chunk - 1) / chunk; }
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
