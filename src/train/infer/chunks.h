// Work on chunks of rows that ranks share, in rounds; between two rounds they agree whether to continue.
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
  /// This rank's part. Calls `step` after each of at most `steps` steps except the last; `step` may throw to
  /// end the work.
  std::function<void(std::int64_t round, const std::function<void()>& step)> make;
  /// After every step, on all ranks, including those with fewer steps. Optional.
  EvaluationWatch watch{};
  /// After each round, on all ranks. Collective. Optional.
  std::function<void(std::int64_t round)> after{};
};

/// False, on every rank, if the watch ended the work early. Collective; an exception of `make` on one rank is
/// thrown on every rank.
bool run(comm::HostGroup& world, const Rounds& work);

/// Chunks that ranks compute in rounds, and that rank 0 receives in order.
struct OrderedChunks {
  std::int64_t rows = 0;   ///< in all
  std::int64_t chunk = 1;  ///< rows of each chunk but the last
  std::int64_t steps = 1;  ///< of the computation of a chunk
  /// Rows `first` to `first` + `count`: float32 [count, ...] on the CPU, with equal rows in all chunks. On
  /// one rank. `step` as in Rounds::make.
  std::function<Tensor(std::int64_t first, std::int64_t count, const std::function<void()>& step)> make;
  /// On rank 0, chunk after chunk.
  std::function<void(std::int64_t first, const Tensor& rows)> take;
  EvaluationWatch watch{};  ///< Rounds::watch

  std::int64_t chunks() const { return (rows + chunk - 1) / chunk; }
};

/// Makes all chunks and passes them to `take`. Memory of a rank: two chunks. False if the watch ended it.
/// Collective; exceptions of `make` on one rank, or of `take` on rank 0, are thrown on every rank; UsageError
/// if shapes differ.
/// Every chunk is broadcast, although only rank 0 needs it (HostGroup has no gather to one rank): a rank
/// receives as many bytes as rank 0, and a round of R ranks has R broadcasts. Pictures and features have
/// kilobytes a row and cost many evaluations of a network, so up to some hundreds of ranks the broadcasts are
/// negligible.
bool run(comm::HostGroup& world, const OrderedChunks& chunks);

}  // namespace lockstep::train
