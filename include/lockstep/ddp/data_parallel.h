// DataParallel: one model on every rank, its gradients summed over the global batch while backward still
// runs.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/autograd/loss.h"
#include "lockstep/autograd/param.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/step.h"
#include "lockstep/ddp/timeline.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/kernels/context.h"

namespace lockstep::ddp {

/// A shard whose memory identifies its step (StepCapture), such as a Batch.
template <class Shard>
concept KnownByTensors = requires(const Shard& shard) {
  { shard.tensors() } -> std::convertible_to<std::span<const Tensor>>;
};

/// Gradients are those of Loss::sum, summed over the samples (or tokens) of the global batch (backward starts
/// with factor 1); an optimizer divides by count().
///
/// Construction, step() and destruction are collective. The model, the transport and the backend must
/// outlive this object; parameters must not be added, frozen or unfrozen during its life.
///
/// With Options::sharded_optimizer this rank's gradients hold sums only in the elements it owns
/// (partition()). The optimizer updates these, and all-gathers of the parameters overlap with later work: a
/// Tape waits for the parameters that it uses, other readers call Param::wait_ready(). During its life
/// parameters are in memory of the transport.
class DataParallel final : public GradientSource {
 public:
  /// Compares the model between ranks, then gives every rank the parameters and buffers of rank 0, and the
  /// EMA weights of an earlier Ema. The model is on the backend's device (nn::Module::to), and so is the
  /// transport's memory (Session::transport()). Throws the same UsageError on every rank: if the ranks'
  /// models or options differ (with the first difference and both sides), if the model is elsewhere, if no
  /// parameter is trainable, if EMA weights are swapped in, or if there are more ranks than shards.
  DataParallel(const ModelState& model, comm::GradientTransport& transport, kernels::Backend& backend,
               const Options& options = {});
  /// The same, with shards and seed of Context::run(), if known. UsageError if the options have other values.
  DataParallel(const ModelState& model, Context& context, const Options& options = {});
  ~DataParallel() override;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// One step: the loss and its backward for every shard of `batch`, then the sums. Where several shards may
  /// be computed at once (Options::shards_at_once), the first steps call loss_of two times more. Afterwards
  /// each trainable parameter's `gradient` is the sum over the global batch (a view, valid until the next
  /// step), and statistics have been applied.
  ///
  /// batch: `batch.step` is the step's number, the same on every rank; a range-for yields this rank's shards
  /// in order, each with an `.index`. loss_of(tape, shard) -> Loss, or loss_of(tape, shard, micro_batch) ->
  /// Loss, which must take its samples by micro_batch.rows(): needed with micro_batches > 1, and with layers
  /// that meet across ranks if ranks differ in their number of shards (UsageError otherwise).
  /// measurement: the step measures the sums with it, unless null; the same on every rank.
  /// Optimizer::measurement_for() returns the one that its next step needs.
  ///
  /// If anything throws on some rank (in the batch or in loss_of), no rank is left waiting: every rank throws
  /// the error of the lowest failing rank, "rank R: " in front, parameters have no gradient, and another step
  /// may follow. If layers meet across ranks, peers may be waiting inside a layer: the error is then
  /// thrown on the failing rank alone, and this object can only be destroyed: run() then ends the world.
  ///
  /// A mean loss that is not finite is a TrainingError on every rank, which names the step, counted from 1
  /// (Options::allow_non_finite_loss). Parameters then have no gradient, so the step is not applied.
  template <class Batch, class LossOf>
  StepResult step(Batch&& batch, LossOf&& loss_of, Measurement* measurement = nullptr);

  /// Collective: compares a digest of the parameters, buffers, EMA weights and optimizer state that every
  /// rank has whole. If they differ, every rank throws the same TrainingError, naming the first such tensors
  /// and the ranks. step() calls it every Options::check_every steps, at its end, before the optimizer
  /// changes anything.
  void check_replicas() const;

  /// Adds spans of each step to the timeline from now on: forward and backward of each shard, each bucket
  /// from ready to start to done, the step header. Null stops that. The timeline must live until then.
  void record(Timeline* timeline);

  /// Every rank gets these requests in the result of the next successful step.
  void request(const Requests& requests);

  std::span<Param* const> params() const override;
  double count() const override;  ///< of the last step
  std::uint64_t steps_begun() const override;
  kernels::Backend& backend() const override;
  RunShape run() const override;
  const Partition* partition() const override;
  void updated(std::size_t param) override;

  /// How many shards one pass computes; known after the first step.
  const ShardsAtOnce& shards_at_once() const;
  /// The captures and launches so far (Options::graph).
  const CapturedSteps& captured_steps() const;
  /// StepResult::compute_ms of any rank in the last step.
  double compute_ms_of(int rank) const;

  /// step, loss_sum and count of the newest step whose loss all ranks know, even if a check ended that step.
  const StepResult& last_result() const;

  const Options& options() const;  ///< with defaults filled in
  comm::HostGroup& group() const;  ///< the ranks that share the batch
  /// For layers that communicate (ModelState::meets_across_ranks); null if the model has none.
  comm::GradientTransport* layer_transport() const;
  const comm::ShardMap& shard_map() const;  ///< which shards each rank has
  /// For passes outside steps (evaluation): call begin() with a Pass that records nothing.
  Tape& tape() { return tape_; }

  /// The current plan. It changes once, after the first step, to the order in which gradients arrived.
  const BucketPlan& plan() const;
  /// The times of the last step, by bucket of its plan; the last bucket has the statistics, if any.
  std::span<const BucketTime> bucket_times() const;
  int accumulation_buffers() const;               ///< of this rank
  std::size_t accumulation_buffer_bytes() const;  ///< of one of them
  /// Memory of the device: what the backend has reserved, and the accumulation buffers.
  std::size_t device_bytes() const;
  /// For a start banner: "12 shards on 5 ranks, at most 3 a rank; 2 buckets of up to 25 MiB; 3
  /// accumulation buffers of 4.1 MiB".
  std::string describe() const;

 private:
  struct State;
  /// Whether the shards of a step can be joined: never, not in this step, or as batches of equal fields.
  enum class Joins : std::uint8_t { never, not_now, now };

  DataParallel(const ModelState& model, comm::GradientTransport& transport, kernels::Backend& backend,
               const Options& options, std::int64_t global_batch);
  void begin_step(std::uint64_t step, bool takes_micro_batches, Measurement* measurement);
  void begin_passes();
  bool may_capture() const;  ///< if so, add_shard() must get all shards before run_passes()
  void add_shard(std::int64_t index, std::span<const Tensor> tensors, bool ragged);
  /// Calls passes(), or launches a graph of the work of an earlier call.
  void run_passes(const std::function<void()>& passes, Joins joins);
  void compare_shards_at_once(const std::function<void()>& passes, Joins joins);
  bool may_join() const;  ///< whether passes compute several shards, or may from this step on
  /// Whether shards can be joined: fields of equal names, shapes and types, on the device.
  bool can_join(const lockstep::Batch& a, const lockstep::Batch& b) const;
  int shards_of_next_pass() const;
  void add_to_group(const lockstep::Batch& shard);
  lockstep::Batch joined_group();
  int begin_shard(std::int64_t index);  ///< returns the number of passes over it
  MicroBatch begin_pass();
  void end_pass(const Loss& loss);
  void check_batch_was_whole() const;
  void fail(std::exception_ptr error);
  void order_sums();
  StepResult finish_step();
  StepResult conclude_step();

  std::unique_ptr<State> state_;
  Tape tape_;  // is destroyed first: it may hold memory of the layers' transport
};

template <class Batch, class LossOf>
StepResult DataParallel::step(Batch&& batch, LossOf&& loss_of, Measurement* measurement) {
  using Iterator = decltype(std::begin(batch));
  const comm::NamedCall call(group(), "calls DataParallel::step");
  constexpr bool takes_micro_batches =
      std::invocable<LossOf&, Tape&, decltype(*std::begin(batch)), const MicroBatch&>;
  constexpr bool repeatable = std::forward_iterator<Iterator>;
  const auto run_shard = [&](auto&& shard) {
    for (int left = begin_shard(static_cast<std::int64_t>(shard.index)); left > 0; --left) {
      const MicroBatch micro_batch = begin_pass();
      if constexpr (takes_micro_batches) {
        end_pass(loss_of(tape_, shard, micro_batch));
      } else {
        end_pass(loss_of(tape_, shard));
      }
    }
  };
  begin_step(static_cast<std::uint64_t>(batch.step), takes_micro_batches, measurement);
  try {
    Iterator first = std::begin(batch);
    const auto last = std::end(batch);
    if constexpr (repeatable && KnownByTensors<std::remove_cvref_t<decltype(*first)>>) {
      if (may_capture()) {
        for (Iterator at = first; at != last; ++at) {
          bool ragged = false;
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*first)>, lockstep::Batch>)
            ragged = (*at).is_ragged();
          add_shard(static_cast<std::int64_t>((*at).index), (*at).tensors(), ragged);
        }
      }
    }
    constexpr bool joins =
        repeatable && std::is_same_v<std::remove_cvref_t<decltype(*first)>, lockstep::Batch>;
    Joins can_join_all = joins ? Joins::now : Joins::never;
    if constexpr (joins)
      for (Iterator at = first; at != last && may_join(); ++at)
        if (!can_join(*first, *at)) can_join_all = Joins::not_now;
    const auto passes = [&] {
      if constexpr (joins) {
        for (Iterator at = first; at != last;) {
          const int count = shards_of_next_pass();
          for (int i = 0; i < count && at != last; ++at, ++i) add_to_group(*at);
          run_shard(joined_group());
        }
      } else if constexpr (repeatable) {
        for (Iterator at = first; at != last; ++at) run_shard(*at);
      } else {  // only steps of known shards can be captured, as that calls the passes twice
        for (; first != last; ++first) run_shard(*first);
      }
      check_batch_was_whole();
    };
    run_passes(std::cref(passes), can_join_all);  // std::cref takes no memory
  } catch (...) {
    fail(std::current_exception());
  }
  return finish_step();
}

}  // namespace lockstep::ddp
