// Loader: the training batches of a rank's shards by step, the next one prepared while this one is computed
// with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/stream.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::data {

/// One forward and backward at one fixed shape.
struct Shard {
  int index = 0;  ///< among all shards of the step
  Tensor x;       ///< [samples, x_shape] of the dataset: float32 images or int64 tokens
  Tensor y;       ///< [samples, y_shape], int64
};

/// What one rank computes with at one step.
struct StepBatch {
  std::int64_t step = 0;
  int shards_total = 0;           ///< of all ranks
  std::span<const Shard> shards;  ///< this rank's, in order; may be none

  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

struct LoaderOptions {
  std::int64_t global_batch = 0;
  int shards = 0;  ///< 0: one per rank
  std::uint64_t seed = 0;
  Augment augment{};    ///< images only
  bool shuffle = true;  ///< false: the data's own order
  /// Batches are on its device, brought there beside what it computes; none: on the CPU. It must outlive the
  /// loader, and belongs to the thread that calls at().
  kernels::Backend* backend = nullptr;
};

/// Steps may be asked in any order; what they hold depends on the step, the options and the dataset only. One
/// background thread reads and augments the step after the one asked last, and sends it to the device. Once
/// built, the loader allocates nothing but what HDF5 does (and the first read of data that is not held in
/// memory). The dataset must outlive it. One thread at a time may call at().
class Loader {
 public:
  /// Throws UsageError if the shards do not divide the batch, or on augmentation of anything but images.
  Loader(const Dataset& dataset, const LoaderOptions& options, const comm::HostGroup& world);
  Loader(const Dataset& dataset, const LoaderOptions& options, int rank, int ranks);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// This rank's shards of a step. The batch and its tensors stay as they are until the next call, and on a
  /// device for whatever has been asked of the backend before it. Throws
  /// what the dataset throws, and UsageError on a step outside the stream; asking again tries again.
  const StepBatch& at(std::int64_t step);

  const Stream& stream() const;
  int shards() const { return static_cast<int>(stream().options().shards); }

 private:
  class Prefetcher;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace lockstep::data
