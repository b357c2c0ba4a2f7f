// Reducer: the step engine. It collects the gradients of a rank's shards in the flat gradient buffer, sums
// each bucket over all shards while backward still runs, and publishes the sums.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "ddp/gradient_buffer.h"
#include "ddp/parameter_buffer.h"
#include "ddp/shard_planes.h"
#include "ddp/step_header.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/step.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// The calls of a step: begin_step; for each group of this rank's shards begin_group and, for each pass over
/// it, (forward), begin_backward, (backward), end_pass; then order_after, publish, finish, agree. After an
/// error before order_after: abandon, then order_after and finish as usual, then withdraw.
///
/// A bucket is complete when every gradient in it is final for the group. It is then added to the partial
/// sums of the groups before, as far as the tree allows. In the last group its sum starts. Buckets start
/// strictly in plan order on every rank: a complete one waits until those before it have started, in the
/// simple modes until order_after. Statistics are the last bucket. A hook, if any, starts and finishes the
/// buckets of gradients.
class Reducer final : public GradientSink, private Buckets {
 public:
  enum class State {
    collecting,  ///< backward writes gradients; buckets start as they become complete
    capturing,   ///< the same, into a graph: nothing runs, so no bucket becomes done
    waiting,     ///< every sum has started, and the backend's later work runs after it
    agreed,      ///< all ranks have agreed on the step: its sums are the gradients
    failed,      ///< this rank has failed: it takes part in the sums, which are invalid
    broken,      ///< the transport has failed: its calls may never return
  };

  /// Uses the bucket limits, the mode, the communication dtype and the hook of `options`. With a
  /// bucket_partition, which must outlive this, the rank gets the sums of the elements it owns only (all of
  /// them from a hook).
  Reducer(std::vector<Param*> params, std::vector<Statistic*> statistics, comm::GradientTransport& transport,
          kernels::Backend& backend, const comm::ShardMap& map, const Options& options,
          const BucketPartition* bucket_partition = nullptr);

  State state() const { return state_; }

  /// Withdraws the last step's gradients.
  void begin_step(std::uint64_t step);
  void begin_group(int group, int passes);  ///< counts this rank's groups from 0
  /// The forward pass is over: parameters that are not in `used` get no gradient in it.
  void begin_backward(std::span<Param* const> used);
  void end_pass();
  /// Between steps, or before begin_step is called again for the same one: so many shards at most are a group
  /// from now on. Their planes take memory of the backend, also in later steps of single shards: graphs know
  /// their addresses.
  void set_shards_at_once(int shards);
  /// For good, without planes.
  void keep_single_shards() {
    set_shards_at_once(1);
    planes_.reset();
  }
  /// While true, no sum starts.
  void hold(bool holds) { holds_ = holds; }
  /// This rank's step has failed: starts all buckets that have not started, for the other ranks.
  void abandon();

  /// From now until the next begin_step the step is captured in a graph, order_after included.
  void begin_capture() { state_ = State::capturing; }
  /// The graph of a step with this usage was launched. Replaces all calls before publish.
  void launched(const Usage& usage);

  /// Starts the remaining sums. The backend runs later work after all of them; on a CPU they are then
  /// complete.
  void order_after();
  /// The gradients of all parameters become views of the sums.
  void publish();
  /// Returns when all sums are complete here: from now on nothing waits for other ranks.
  void finish();
  /// All ranks agree on the step: statistics take their sums, and parameters that no shard of any rank used
  /// lose the gradient.
  void agree(const StepHeader& header);
  /// Removes the gradients of all parameters.
  void withdraw();

  GradientView gradient_view(Param& param) override;
  void ready(Param& param) override;
  GradientView gradient_view(Statistic& statistic) override;
  void contributed(Statistic&) override {}
  void progress() override;

  /// Items 0..params-1 are the parameters; the statistics follow.
  const Usage& usage() const { return usage_; }
  std::span<Param* const> params() const { return params_; }
  std::span<Statistic* const> statistics() const { return statistics_; }
  kernels::Backend& device() const { return backend_; }
  const GradientBuffer& buffer() const { return buffer_; }
  const AccumulationSchedule& schedule() const { return schedule_; }
  std::span<const BucketTime> bucket_times() const { return times_; }
  /// The sum over all shards, after order_after; with a bucket_partition, only in the elements that this rank
  /// owns.
  Tensor sum(int param) const { return buffer_.gradient(param, 0); }

  /// Collective, after publish: makes the plan again from the order in which gradients arrived in rank 0's
  /// last shard (parameters without one go last). The gradients keep their values.
  void replan();

 private:
  struct BucketState {
    int open = 0;           // gradients that are not final in the current group
    bool complete = false;  // in the last group
    comm::Work work = 0;    // its sum, also one of a hook's; 0: none
  };

  template <class Call>
  void guarded(const Call& call);
  BucketState& state_of(int bucket) { return states_[static_cast<std::size_t>(bucket)]; }
  const AccumulationSchedule::Group& group() const {
    return schedule_.groups()[static_cast<std::size_t>(group_)];
  }
  bool in_last_group() const { return group_ + 1 == static_cast<int>(schedule_.groups().size()); }
  bool in_last_pass() const { return passes_left_ == 1; }
  bool has_hook(int bucket) const { return options_.hook && bucket < buffer_.gradient_buckets(); }
  std::size_t item_of(const void* leaf, const std::string& name) const;
  std::size_t open_item_of(const Param& param) const;
  GradientView view_of(std::size_t item, Tensor memory);
  Tensor gradient_at(std::size_t param) const;
  Tensor statistic_at(std::size_t item) const;
  void finish_gradient(std::size_t param);
  void finish_bucket(int bucket);
  void complete_all();
  void start_complete();
  void start(int bucket);
  void note_done();
  void fit_plan();

  const BucketPlan& plan() const override { return buffer_.plan(); }
  comm::GradientTransport& transport() const override { return transport_; }
  kernels::Backend& backend() const override { return backend_; }
  int partial_sums() const override { return schedule_.subtrees(); }
  Tensor gradient(int index, int buffer) const override { return buffer_.gradient(index, buffer); }
  Tensor bucket(int index, int buffer) const override { return buffer_.bucket(index, buffer); }
  DType comm_dtype() const override { return options_.comm_dtype; }
  bool failed() const override { return state_ == State::failed; }
  comm::Work start_sum(int bucket) override;

  std::vector<Param*> params_;
  std::vector<Statistic*> statistics_;
  std::unordered_map<const void*, std::size_t> item_of_;  // by parameter and by statistic
  comm::GradientTransport& transport_;
  kernels::Backend& backend_;
  comm::ShardMap map_;
  AccumulationSchedule schedule_;
  Options options_;
  const BucketPartition* bucket_partition_;
  std::vector<comm::Slices> slices_;  // by bucket of gradients, if their sums are scattered
  GradientBuffer buffer_;
  std::optional<ShardPlanes> planes_;  // if a group has several shards
  Usage usage_;
  State state_ = State::agreed;
  bool holds_ = false;

  // of the current group
  int group_ = 0;
  int passes_left_ = 0;
  std::vector<char> final_;  // by parameter: its gradient has its value

  // of the step
  Stopwatch since_start_;
  std::vector<BucketState> states_;  // by bucket
  int started_ = 0;                  // buckets before this one have started
  int done_ = 0;                     // buckets before this one are known to be done
  std::vector<BucketTime> times_;    // by bucket
  std::vector<std::int32_t> arrival_;
};

}  // namespace lockstep::ddp
