// Reducer: takes the gradients of a rank's shards into the arena and sends each bucket on its way.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ddp/gradient_arena.h"
#include "ddp/parameter_arena.h"
#include "ddp/usage.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// A step: begin_step; for each shard of this rank begin_shard, then for each of its pieces begin_pass,
/// (forward), begin_backward, (backward), end_pass; at the end wait. Whatever goes wrong in between: abandon,
/// then wait.
///
/// A bucket is complete when every gradient in it is final for the shard; the inner nodes of the tree that
/// are due are added at once. In the last shard its sum is then started, all buckets strictly in plan order
/// on every rank (a complete one waits for its turn; in the simple modes, for the end of backward).
/// Statistics are the last bucket. A hook, if there is one, starts and finishes the buckets of gradients.
class Reducer final : public GradientSink, private Buckets {
 public:
  /// Of `options` it takes the buckets' limits, the mode, the wire's type and the hook. slicer: this rank
  /// gets the sums of the elements it owns only (all of them from a hook); none: all sums. It must outlive
  /// this.
  Reducer(std::vector<Param*> params, std::vector<Statistic*> statistics,
          comm::GradientTransport& communicator, kernels::Backend& backend, const comm::ShardMap& map,
          const Options& options, const BucketSlicer* slicer = nullptr);

  void begin_step(std::uint64_t step);
  void begin_shard(int turn);  ///< counts this rank's shards from 0
  /// last_piece: after this pass the shard is complete.
  void begin_pass(bool last_piece);
  /// The forward pass is over: parameters that are not in `used` will get no gradient in it.
  void begin_backward(std::span<Param* const> used);
  void end_pass();
  /// Starts whatever has not been started; the step's sums are worthless.
  void abandon();
  /// From now on every sum is complete for what is asked of the backend.
  void wait();
  /// What is asked for from now on is recorded, or no longer: nothing can be known of what is under way.
  void record(bool recording) { recording_ = recording; }
  /// A step like that which had this usage was replayed, until wait().
  void replayed(const Usage& usage);
  /// Returns when a device has got so far: from now on nothing waits for other ranks.
  void complete();

  GradientSlot slot(Param& param) override;
  void ready(Param& param) override;
  GradientSlot slot(Statistic& statistic) override;
  void contributed(Statistic& statistic) override;
  void progress() override;

  /// Items 0..params-1 are the parameters, then come the statistics.
  const Usage& usage() const { return usage_; }
  std::span<Param* const> params() const { return params_; }
  std::span<Statistic* const> statistics() const { return statistics_; }
  const GradArena& arena() const { return arena_; }
  const PlaneSchedule& schedule() const { return schedule_; }
  std::span<const BucketTime> bucket_times() const { return times_; }
  /// The sum over all shards, after wait(); with a slicer, of the elements that this rank owns.
  Tensor sum(int param) const { return arena_.gradient(param, 0); }
  Tensor statistic_sum(int statistic) const { return arena_.statistic(statistic, 0); }

  /// Collective: makes the plan again from the order in which gradients arrived in rank 0's last shard
  /// (parameters without one go last). Sums stay what they are.
  void replan();

  /// A call of the communicator has thrown: no further call can be expected to return.
  bool transport_failed() const { return in_transport_; }

 private:
  template <class Call>
  void transport(const Call& call) {
    const bool within = std::exchange(in_transport_, true);
    call();
    in_transport_ = within;
  }
  std::size_t index_of(const Param& param) const;
  std::size_t index_of(const Statistic& statistic) const;
  const PlaneSchedule::Turn& turn() const { return schedule_.turns()[static_cast<std::size_t>(turn_)]; }
  bool last_turn() const { return turn_ + 1 == static_cast<int>(schedule_.turns().size()); }
  void finish_gradient(std::size_t param);
  void finish_statistics();
  void finish_bucket(int bucket);
  void start_all();
  void start_buckets();
  void start_bucket(int bucket);
  void note_done();
  void fit_plan();

  const BucketPlan& plan() const override { return arena_.plan(); }
  comm::GradientTransport& communicator() const override { return communicator_; }
  kernels::Backend& backend() const override { return backend_; }
  int partial_sums() const override { return schedule_.subtrees(); }
  Tensor gradient(int gradient, int plane) const override { return arena_.gradient(gradient, plane); }
  Tensor bucket(int bucket, int plane) const override { return arena_.bucket(bucket, plane); }
  DType wire() const override { return wire_; }
  bool failed() const override { return failed_; }
  comm::Ticket start_sum(int bucket) override;
  comm::Ticket start_own_sums(int bucket);

  std::vector<Param*> params_;
  std::vector<Statistic*> statistics_;
  std::unordered_map<const Param*, std::size_t> index_of_param_;
  std::unordered_map<const Statistic*, std::size_t> index_of_statistic_;
  comm::GradientTransport& communicator_;
  kernels::Backend& backend_;
  comm::ShardMap map_;
  PlaneSchedule schedule_;
  BucketLimits limits_;
  Mode mode_;
  DType wire_;
  Hook* hook_;
  const BucketSlicer* slicer_;
  std::vector<comm::Slices> slices_;  // by bucket of gradients, with a slicer
  GradArena arena_;
  Usage usage_;

  // of the shard at hand
  int turn_ = 0;
  bool last_piece_ = false;
  std::vector<char> final_;     // by parameter: its gradient has its value
  std::vector<char> used_;      // by parameter: recorded in this pass
  std::vector<int> open_;       // by bucket: gradients not final
  Tensor second_contribution_;  // Space for the largest statistic
  bool in_second_contribution_ = false;

  // of the step
  Stopwatch since_start_;
  std::vector<char> complete_;         // by bucket: may start
  bool backward_over_ = false;         // the simple modes start nothing before
  int next_ = 0;                       // the bucket whose turn it is
  std::vector<comm::Ticket> tickets_;  // by bucket: of its sum, a hook's too; 0: none
  int done_ = 0;                       // buckets before this one are known to be complete
  bool finished_ = false;              // the hook has finished
  bool failed_ = false;                // abandoned
  std::vector<BucketTime> times_;
  bool in_transport_ = false;
  bool recording_ = false;
  std::vector<std::int32_t> arrival_;
};

}  // namespace lockstep::ddp
