// StepHeader: the only collective of a step besides its buckets, and small.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/gradient_buffer.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/step.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/loss.h"

namespace lockstep::ddp {

/// Which parameters and statistics each shard of a rank wrote, one bit each.
class Usage {
 public:
  using Word = std::uint64_t;

  Usage(int shards, std::size_t items)
      : items_(items), words_((items + 63) / 64), bits_(static_cast<std::size_t>(shards) * words_) {}

  std::size_t items() const { return items_; }
  std::size_t words() const { return words_; }
  void clear() { bits_.assign(bits_.size(), 0); }
  bool test(int shard, std::size_t item) const { return test(row(shard), item); }
  static bool test(std::span<const Word> row, std::size_t item) { return row[item / 64] >> item % 64 & 1; }
  void set(int shard, std::size_t item) {
    bits_[static_cast<std::size_t>(shard) * words_ + item / 64] |= Word{1} << item % 64;
  }
  std::span<const Word> row(int shard) const {
    return {bits_.data() + static_cast<std::size_t>(shard) * words_, words_};
  }

 private:
  std::size_t items_;
  std::size_t words_;
  std::vector<Word> bits_;  // [shards][words]
};

/// Every rank fills a record of fixed size, all ranks gather all records, and every rank folds them in the
/// same way. A record holds: step, plan hash, requests, whether this rank failed, how long it computed, the
/// loss of each maximal sub-tree of its block of shards, and two bits per parameter and statistic: written in
/// some shard of this rank, missed in some shard of this rank.
class StepHeader {
 public:
  StepHeader(const comm::ShardMap& map, const AccumulationSchedule& schedule, std::size_t items,
             kernels::Backend& backend);

  void begin(std::uint64_t step);
  /// The losses of a pass over a group of this rank's shards (Loss::total), then the group's end: losses are
  /// added along the tree, on the backend's device.
  void add_loss(const AccumulationSchedule::Group& group, bool first_micro_batch, const Tensor& loss);
  void end_group(const AccumulationSchedule::Group& group);
  /// The sums so far, one for each accumulation buffer.
  const Tensor& partial_losses() const { return partial_; }
  /// The transfer to read before exchange().
  kernels::Transfer losses();

  /// Collective.
  void exchange(comm::HostGroup& group, std::uint64_t plan_hash, const Requests& requests, bool failed,
                double compute_ms, const Usage& usage);

  // --- after exchange(), the same on every rank
  bool any_failed() const;
  /// Throws if ranks are at different steps (UsageError) or hold different plans (TrainingError).
  void check_agreement() const;
  ops::CountedSum loss() const;
  /// Neighbouring shards of one rank whose loss is not finite, if that of the others is.
  std::optional<comm::ShardRange> shards_not_finite() const;
  Requests requests() const;
  double compute_ms(int rank) const;
  bool written(std::size_t item) const;  ///< in some shard of some rank
  bool missed(std::size_t item) const;   ///< in some shard of some rank

 private:
  using Word = Usage::Word;
  std::span<const Word> record(int rank) const;
  /// The bits of this word of the record that are set on any rank.
  Word of_any(std::size_t word) const;
  ops::CountedSum loss_of(comm::ShardRange node) const;
  Tensor partial(int buffer) const;

  comm::ShardMap map_;
  AccumulationSchedule schedule_;
  std::size_t partials_ = 0;  ///< space for this many losses: the maximal number of sub-trees of a rank
  std::size_t words_ = 0;     ///< of a bit set
  std::vector<std::vector<comm::ShardRange>> subtrees_;  // by rank
  kernels::Backend& backend_;
  Tensor partial_;                     // float64 [accumulation buffers, 2]
  Tensor table_;                       // of the losses of shards at once
  std::vector<ops::CountedSum> read_;  // by sub-tree
  std::uint64_t step_ = 0;
  std::size_t record_words_ = 0;
  std::vector<Word> mine_;
  std::vector<Word> all_;
};

}  // namespace lockstep::ddp
