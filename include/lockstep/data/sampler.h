// The order of samples: in an epoch, in a training run, and in a user's own loop.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::data {

/// A pseudo-random permutation, the order of an epoch.
class Permutation {
 public:
  /// Throws UsageError unless 1 <= size <= 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }  ///< number of elements
  /// The image of `index`. Precondition: 0 <= index < size.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int rounds = 8;

  std::int64_t size_;
  int half_bits_;
  std::array<std::uint64_t, rounds> round_keys_;
};

/// Maps a position in training to a sample. A pure function, so that a run can resume at any position.
class Order {
 public:
  virtual ~Order() = default;
  /// The samples at positions [first, first + out.size()); first >= 0. Called from several threads.
  virtual void samples(std::int64_t first, std::span<std::int64_t> out) const = 0;
};

/// Position p is in epoch p div N at index p mod N, which the epoch's permutation maps to a sample.
class Shuffle final : public Order {
 public:
  /// shuffle = false: every epoch has the order of the data. Throws UsageError if size < 1.
  Shuffle(std::int64_t size, std::uint64_t seed, bool shuffle = true);
  void samples(std::int64_t first, std::span<std::int64_t> out) const override;

 private:
  std::int64_t size_;
  std::uint64_t seed_;
  bool shuffle_;
};

/// Draws with replacement: sample i with probability weights[i] / sum of weights. To balance classes, use
/// 1 / (number of samples of its class) as the weight of a sample.
class WeightedDraws final : public Order {
 public:
  /// Throws UsageError unless weights are finite and not negative, and their sum is finite and above 0.
  WeightedDraws(std::span<const double> weights, std::uint64_t seed);
  void samples(std::int64_t first, std::span<std::int64_t> out) const override;

 private:
  std::vector<double> cumulative_;
  std::uint64_t seed_;
};

/// The endless sequence of training samples. Step s takes positions [s B, (s + 1) B) for a global batch B;
/// shard v of V takes [s B + v B / V, s B + (v + 1) B / V) of them. An epoch has N positions and may end
/// inside a batch. The sequence depends neither on the number of ranks nor on previous calls.
class SampleStream {
 public:
  /// The shape of the run.
  struct Options {
    std::int64_t samples = 0;       ///< N
    std::int64_t global_batch = 0;  ///< B
    std::int64_t shards = 1;        ///< V
    std::uint64_t seed = 0;         ///< decides the order
    bool shuffle = true;            ///< false: every epoch has the order of the data
  };
  /// order: null for Shuffle. Throws UsageError if a number is below 1 or shards do not divide the batch.
  explicit SampleStream(const Options& options, std::unique_ptr<Order> order = nullptr);

  const Options& options() const { return options_; }  ///< those of the constructor
  /// The number of samples per shard.
  std::int64_t samples_per_shard() const { return options_.global_batch / options_.shards; }
  /// The epoch in which a step begins.
  std::int64_t epoch(std::int64_t step) const { return first_position(step) / options_.samples; }
  /// Writes the samples of one shard at one step to `out`, whose size is samples_per_shard(). Throws
  /// UsageError for a step below 0 or beyond 2^63 positions, a shard outside [0, V), or another size of
  /// `out`.
  void shard_samples(std::int64_t step, std::int64_t shard, std::span<std::int64_t> out) const;

 private:
  std::int64_t first_position(std::int64_t step) const;

  Options options_;
  std::unique_ptr<const Order> order_;
};

/// torch.utils.data.DistributedSampler for a user's own loop. Rank r takes samples r, r + ranks, r + 2 ranks
/// ... of a list. To make its length a multiple of `ranks`, samples from its start are repeated or, with
/// drop_last, its end is dropped. A shuffled order is Permutation(seed, epoch), not PyTorch's generator.
/// Repeated samples count twice, so use EvalBatches for evaluation.
class DistributedSampler {
 public:
  /// The arguments of PyTorch's DistributedSampler.
  struct Options {
    std::int64_t length = 0;  ///< number of samples of the data set
    int ranks = 1;            ///< number of ranks that share them
    int rank = 0;             ///< this rank
    bool shuffle = true;      ///< whether each epoch has its own order
    std::uint64_t seed = 0;   ///< decides the orders
    /// Whether to drop the last samples if ranks cannot share them equally; false: repeat the first ones.
    bool drop_last = false;
  };
  /// Throws UsageError for a negative length or a rank outside [0, ranks).
  explicit DistributedSampler(const Options& options);

  /// The number of samples of this rank per epoch.
  std::int64_t size() const { return per_rank_; }
  /// The i-th sample of this rank in this epoch, 0 <= i < size() (UsageError otherwise).
  std::int64_t operator[](std::int64_t i) const;
  std::vector<std::int64_t> indices() const;  ///< all samples of this rank in this epoch

  /// Sets the epoch, which decides the order. Call it on every rank before each epoch; otherwise all epochs
  /// have the same order.
  void set_epoch(std::uint64_t epoch);

 private:
  Options options_;
  std::int64_t per_rank_;
  std::optional<Permutation> permutation_;  // none: in order
};

}  // namespace lockstep::data
