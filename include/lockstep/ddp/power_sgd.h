// PowerSgd: gradients that are matrices travel as two thin factors, and what those leave out is sent with the
// next step. Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
// optimization", NeurIPS 2019.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/hook.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::ddp {

struct PowerSgdOptions {
  int rank = 1;                    ///< columns of each factor
  std::int64_t start_step = 1000;  ///< steps before this one (from 0) are plain sums
  double min_compression = 2;      ///< a gradient travels plain unless it shrinks by more than this factor
  bool error_feedback = true;      ///< what a step leaves out is added to this rank's next gradient
  bool warm_start = true;          ///< a step starts from the last one's factor, not from random numbers
  std::uint64_t seed = 0;          ///< of the random numbers
};

/// A gradient is taken as a matrix M [n, m] of its first dimension and all others. It is compressed if
/// (n + m) * rank * min_compression < n * m; all else travels as it is, in the same sums.
///
/// With M_r the gradient of rank r's shards plus what it has left out so far, and Q [m, rank] equal
/// everywhere: P = orthonormal(sum of M_r Q), Q' = sum of M_r^T P, and P Q'^T stands for the sum. Rank r
/// leaves out M_r - P Q'^T / ranks, so all ranks together leave out the sum less its stand-in. P travels
/// during backward, Q' after it. Once the factors are as wide as the matrix has rank, nothing is left out.
///
/// Sums of factors are over ranks: their bits are the same at the same number of ranks only. They travel in
/// the wire's type; rounding is among what is left out. A step in which a rank fails changes no memory of
/// earlier ones, and neither does a gradient that is not finite (which is passed on as such).
///
/// Where no rank used a parameter in a step (Unused::allow), what stands for its sum is dropped with it.
///
/// Memory per rank, where the gradients lie: a gradient's worth for what is left out (with error_feedback),
/// and the factors. Allocates in bind() and in the first compressed step only. Must be destroyed before the
/// communicator.
class PowerSgd final : public Hook {
 public:
  /// Throws UsageError on bad options. With error feedback or warm start, start_step must be at least 2, as
  /// in PyTorch: the first gradients of fresh weights are unlike any later ones and would be remembered.
  explicit PowerSgd(const PowerSgdOptions& options = {});
  ~PowerSgd() override;

  std::string describe() const override;
  /// "5 of 12 gradients travel as factors of rank 4 from step 1000 on: 98.2 MiB a step become 0.4 MiB".
  std::string summary() const override;
  void bind(Buckets& buckets) override;
  void begin_step(std::uint64_t step) override;
  void start(int bucket) override;
  void finish() override;
  /// "powersgd/q" (with warm_start) and, by rank, "powersgd/error" (with error_feedback), once a step was
  /// to be compressed.
  std::vector<HookState> state() override;
  std::vector<HookState> state_to_load() override;
  kernels::Backend* backend() override { return buckets_ ? &buckets_->backend() : nullptr; }

 private:
  /// What a compressed gradient has from step to step.
  struct Memory {
    Tensor q;      // [rank, m]: Q transposed, its rows orthonormal
    Tensor error;  // [n, m]; none without error feedback
  };
  struct Item {                 // by gradient
    std::int64_t n = 0, m = 0;  // as a matrix
    std::int64_t rank = 0;      // 0: travels plain
    Memory memory;
    std::uint64_t random = 0;       // purpose of its random numbers
    std::size_t first_offset = 0;   // in the arena: P [n, rank], or the gradient itself
    std::size_t second_offset = 0;  // Q' transposed [rank, m]
    bool compressed() const { return rank > 0; }
  };
  /// Where a bucket's part of a sum lies in the arena.
  struct Segment {
    std::size_t offset = 0, bytes = 0;
  };

  void remember(const BucketPlan& plan);
  void lay_out(const BucketPlan& plan);
  /// Of the numbers that Q starts from. They also take the place of a vector that says nothing new (a
  /// gradient of lower rank), which would stay zero for ever.
  RandomKey key_of(const Item& item) const;
  /// Q anew, from random numbers.
  void draw(const Item& item) const;
  void fold(int bucket) const;
  void compress(int bucket);
  void project(int bucket);
  void expand(int bucket);
  comm::Ticket start_sum(const Segment& segment) const;
  void wait(comm::Ticket ticket) const;

  const std::vector<int>& gradients_of(int bucket) const;
  const Item& item_of(int gradient) const { return items_[static_cast<std::size_t>(gradient)]; }
  Tensor matrix(int gradient) const;  // in plane 0
  Tensor at(std::size_t offset, Shape shape) const;
  Tensor p_of(const Item& item) const { return at(item.first_offset, {item.n, item.rank}); }
  Tensor new_q_of(const Item& item) const { return at(item.second_offset, {item.rank, item.m}); }
  Tensor failures() const { return at(failures_offset_, {1}); }

  PowerSgdOptions options_;
  Buckets* buckets_ = nullptr;
  std::map<std::string, Memory> memory_;  // by parameter: it outlives plans
  std::vector<Item> items_;
  int compressed_items_ = 0;
  std::unique_ptr<comm::Arena> arena_;
  comm::ShardMap ranks_{1, 1};             // one leaf a rank
  std::vector<Segment> firsts_, seconds_;  // by bucket
  std::size_t failures_offset_ = 0;        // one float in the first of seconds_: ranks that failed
  Tensor valid_;                           // one float: whether the factors of the gradient at hand are
  bool remembers_ = false;                 // a step was to be compressed, or its memory loaded

  // of the step
  std::uint64_t step_ = 0;
  bool compresses_ = false;
  std::vector<comm::Ticket> tickets_;  // by bucket, of its last sum
};

}  // namespace lockstep::ddp
