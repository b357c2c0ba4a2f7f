// Permutation: the order of an epoch. DistributedSampler: torch.utils.data.DistributedSampler's share of the
// samples for each rank, for callers' own loops.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::data {

class Permutation {
 public:
  /// Throws UsageError unless 1 <= size <= 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }
  /// Where `index` in [0, size) goes; each place is taken once. Not checked.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int rounds = 8;

  std::int64_t size_;
  int half_bits_;
  std::array<std::uint64_t, rounds> round_keys_;
};

/// Rank r takes places r, r + ranks, r + 2 ranks ... of the list of samples, which is first made a multiple
/// of `ranks` long: by repeating it from the start, or with drop_last by cutting it. All ranks get equally
/// many. The order of a shuffle is our own Permutation of (seed, epoch), not PyTorch's generator. Padding
/// counts a sample twice: evaluate with EvalBatches instead.
class DistributedSampler {
 public:
  struct Options {
    std::int64_t length = 0;
    int ranks = 1;
    int rank = 0;
    bool shuffle = true;
    std::uint64_t seed = 0;
    bool drop_last = false;
  };
  /// Throws UsageError on a negative length or a rank outside [0, ranks).
  explicit DistributedSampler(const Options& options);

  /// Samples of this rank per epoch.
  std::int64_t size() const { return per_rank_; }
  /// The i-th sample of this rank in this epoch, 0 <= i < size() (UsageError otherwise).
  std::int64_t operator[](std::int64_t i) const;
  std::vector<std::int64_t> indices() const;

  /// Reshuffles; call it on every rank before each epoch, or every epoch has the same order.
  void set_epoch(std::uint64_t epoch);

 private:
  Options options_;
  std::int64_t per_rank_;
  std::optional<Permutation> permutation_;  // none: in order
};

}  // namespace lockstep::data
