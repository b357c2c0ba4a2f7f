// EvalBatches: every sample exactly once, in fixed chunks dealt to the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Samples [chunk * batch, (chunk + 1) * batch) of a dataset; the last chunk may be short.
struct EvalBatch {
  int chunk = 0;
  Tensor x;  ///< [samples, x_shape]
  Tensor y;  ///< [samples, y_shape], int64
  std::int64_t samples() const { return x.size(0); }
};

/// What a chunk holds does not depend on the number of ranks, and sum() adds in the order of chunks, so
/// neither does the result. Nothing is padded. A rank may have no chunk. The dataset must outlive it.
class EvalBatches {
 public:
  /// Throws UsageError if batch < 1 or there are more than 2^31 chunks.
  EvalBatches(const Dataset& dataset, std::int64_t batch, const comm::HostGroup& world);
  EvalBatches(const Dataset& dataset, std::int64_t batch, int rank, int ranks);

  int chunks() const { return map_.shards(); }
  /// This rank's chunks.
  comm::ShardRange mine() const { return map_.block(rank_); }
  /// Of the rank that has most.
  int most_chunks() const { return map_.block(0).count; }
  /// Reads a chunk, any rank's; the tensors stay as they are until the next call.
  const EvalBatch& read(int chunk);

  /// Sums over all chunks of all ranks (collective). `values` holds `width` numbers for each of this rank's
  /// chunks, chunk after chunk; the result holds `width` sums, the same on every rank.
  std::vector<double> sum(comm::HostGroup& world, std::span<const double> values, int width) const;

 private:
  const Dataset& dataset_;
  std::int64_t batch_;
  int rank_;
  comm::ShardMap map_;
  std::vector<std::int64_t> samples_;
  Tensor x_, y_;
  EvalBatch current_;
};

}  // namespace lockstep::data
