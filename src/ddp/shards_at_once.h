// Shards at once: whether passes may compute several, how many, and whether their sums have the right bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/reducer.h"
#include "ddp/step_header.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/timeline.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/batch.h"

namespace lockstep::ddp {

/// Why passes have one shard each; empty: they may have more. joins: batches can be joined.
std::string why_single(const Options& options, bool layers_meet, bool joins);

/// The largest power of two of shards that the device's memory allows, with the bytes of a pass over one.
int most_at_once(const Reducer& reducer, std::size_t bytes_of_one);

/// While it lives, passes send no gradients and record no times.
class Trial {
 public:
  Trial(Reducer& reducer, Timeline*& timeline)
      : reducer_(reducer), timeline_(timeline), kept_(std::exchange(timeline, nullptr)) {
    reducer_.hold(true);
  }
  ~Trial() {
    reducer_.hold(false);
    timeline_ = kept_;
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

 private:
  Reducer& reducer_;
  Timeline*& timeline_;
  Timeline* kept_;
};

/// Whether the rows of b may follow those of a: fields of equal names, shapes and types, plain, on the
/// device, of samples of one size.
bool joins(const Batch& a, const Batch& b, const Device& device);
/// The rows of all batches, which joins() allows, one after another: where they are, if they are so in
/// memory, or a copy. UsageError unless their shards follow one another.
Batch joined_rows(std::span<const Batch> batches, kernels::Backend& backend);

/// Digests of a rank's gradients, statistics and losses: sums over its shards, not yet over ranks.
class SumDigests {
 public:
  /// Reads all of them from the device.
  SumDigests(const Reducer& reducer, const StepHeader& header);
  /// What differs first, as a reason; empty: nothing.
  std::string difference(const SumDigests& of_several) const;
  /// Whether all elements of some gradient, statistic or loss are zero.
  bool any_zero() const { return any_zero_; }

 private:
  const Reducer& reducer_;
  bool any_zero_ = false;
  std::vector<std::uint64_t> digests_;  // of each sub-tree: parameters, then statistics; last the losses
};

}  // namespace lockstep::ddp
