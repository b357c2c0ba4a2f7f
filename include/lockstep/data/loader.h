// Loader: the training batches of a rank's shards by step; the next ones are prepared while this one
// computes. EvalBatches: every sample exactly once, in fixed chunks dealt to the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/kernels/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

/// Crops and flips x, float32 [N, C, H, W], in place. `scratch` holds at least one image, C H W floats.
/// Throws UsageError on another x, a small scratch, or crop_padding outside [0, min(H, W)].
void augment_images(const Augment& augment, std::uint64_t seed, std::int64_t step, int shard, const Tensor& x,
                    std::span<float> scratch);

/// What one rank computes with at one step.
struct StepBatch {
  std::int64_t step = 0;          ///< finished updates before this step
  int shards_total = 0;           ///< of all ranks
  std::span<const Batch> shards;  ///< this rank's, in order; may be none

  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

/// The shape of the run, and how batches are read.
struct LoaderOptions {
  std::int64_t global_batch = 0;  ///< samples of a step, over all ranks
  int shards = 0;                 ///< 0: one per rank
  std::uint64_t seed = 0;         ///< of the run: decides the order of samples
  Augment augment{};              ///< field x, which must be images
  bool shuffle = true;            ///< false: the data's own order; true: Dataset::order()
  /// A number for each sample: they are drawn with replacement by it (WeightedDraws), instead of
  /// Dataset::order(). Empty: they are not. Used only while the loader is made.
  std::span<const double> weights{};
  /// Batches are copied to its device while it computes; none: they stay on the CPU. It must outlive the
  /// loader, and belongs to the thread that calls at().
  kernels::Backend* backend = nullptr;
  int threads = 1;  ///< that read, at least 1; batches do not depend on them
  int ahead = 2;    ///< steps that are read before they are asked for, at least 1: memory for one more
  /// The largest number of rows that a ragged field may have in a shard; 0: any.
  std::int64_t max_rows = 0;
};

/// What a Loader of a context (Context::run()) leaves to say.
struct BatchOptions {
  Augment augment{};          ///< as in LoaderOptions
  bool shuffle = true;        ///< as in LoaderOptions
  int threads = 1;            ///< as in LoaderOptions
  int ahead = 2;              ///< as in LoaderOptions
  std::int64_t max_rows = 0;  ///< as in LoaderOptions
};

/// Steps may be asked for in any order; their samples depend on the step, the options and the dataset only.
/// Background threads read and augment the steps after the last one, several threads a step where it is
/// large, and send them to the device; a jump to another step drops what is ahead. Once built, the loader
/// allocates nothing except inside HDF5, in each thread's first read of data that is not in memory, and a
/// little for each picture of a folder. The dataset must outlive it. One thread at a time may call at().
///
/// If the data set has ragged fields, batches are ragged (Batch) and their tensors are views of buffers that
/// grow to the largest shard.
class Loader {
 public:
  /// The batches of the context's run, on the device of its backend. Throws UsageError if the run has no
  /// global batch (Context::set_run).
  Loader(const Dataset& dataset, Context& context, const BatchOptions& options = {});
  /// Throws UsageError if the shards do not divide the batch, on augmentation of anything but images, or
  /// without threads or steps ahead.
  Loader(const Dataset& dataset, const LoaderOptions& options, const comm::HostGroup& world);
  /// For rank `rank` of `ranks`. UsageError if the shards do not fit the batch or the ranks.
  Loader(const Dataset& dataset, const LoaderOptions& options, int rank, int ranks);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// This rank's shards of a step. The batch and its tensors stay as they are until the next call, and on a
  /// device for the operations that the backend got before it; all steps have the same tensors there, unless
  /// they are ragged. Throws what the dataset throws for the first sample that cannot be read, DataError for
  /// more than max_rows rows and for a wrong row number (Field::index_of), and UsageError on a step outside
  /// the stream; asking again tries again.
  const StepBatch& at(std::int64_t step);

  const SampleStream& stream() const;  ///< which samples each step takes
  /// Equal parts of a global batch.
  int shards() const { return static_cast<int>(stream().options().shards); }

 private:
  class Prefetcher;
  std::unique_ptr<Prefetcher> prefetcher_;
};

/// Chunk k is samples [k * batch, (k + 1) * batch) of a dataset; the last chunk may be short. Of ragged data
/// a chunk is shorter where a field would have more than max_ragged_rows rows, but has at least one sample.
///
/// What a chunk holds does not depend on the number of ranks, and sum() adds in the order of chunks, so
/// neither does the result. Nothing is padded. A rank may have no chunk. The dataset must outlive it.
class EvalBatches {
 public:
  static constexpr std::int64_t max_ragged_rows = 4096;  ///< of a chunk with several samples

  /// Throws UsageError if batch < 1 or there are more than 2^31 chunks.
  EvalBatches(const Dataset& dataset, std::int64_t batch, const comm::HostGroup& world);
  /// Batches of `batch` samples; rank `rank` of `ranks` gets a part of them.
  EvalBatches(const Dataset& dataset, std::int64_t batch, int rank, int ranks);

  int chunks() const { return map_.shards(); }  ///< batches in all, over all ranks
  /// This rank's chunks.
  comm::ShardRange mine() const { return map_.block(rank_); }
  /// The number of a chunk's first sample; of chunks(): the number of samples.
  std::int64_t first_sample(std::int64_t chunk) const {
    return begins_.empty() ? std::min(chunk * batch_, dataset_.size())
                           : begins_[static_cast<std::size_t>(chunk)];
  }
  /// Of the rank that has most.
  int max_chunks() const { return map_.block(0).count; }
  /// Reads a chunk, any rank's; the tensors stay as they are until the next call.
  const Batch& read(int chunk);

  /// Sums over all chunks of all ranks (collective). `values` holds `width` numbers for each of this rank's
  /// chunks, chunk after chunk; the result holds `width` sums, the same on every rank.
  std::vector<double> sum(comm::HostGroup& world, std::span<const double> values, int width) const;

 private:
  const Dataset& dataset_;
  std::int64_t batch_;
  std::vector<std::int64_t> begins_;  // of ragged data: the first sample of each chunk, and the end
  int rank_;
  comm::ShardMap map_;
  std::vector<Field> fields_;  // of batches
  std::vector<std::int64_t> samples_;
  std::vector<Tensor> tensors_;  // by field, as long as a chunk; of a ragged field as the largest so far
  Batch current_;
};

}  // namespace lockstep::data
