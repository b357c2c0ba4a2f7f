#include "lockstep/ddp/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/progress.h"
#include "base/text.h"
#include "ddp/checks.h"
#include "ddp/parameter_buffer.h"
#include "ddp/reducer.h"
#include "ddp/shards_at_once.h"
#include "ddp/step_capture.h"
#include "ddp/step_header.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::ddp {
namespace {

using progress::Phase;

constexpr double bytes_per_mib = 1 << 20;

// Points of a step that its Timer marks.
constexpr int moment_of_start = 0, moment_of_backward_end = 1, moment_of_sums = 2;

/// The options, completed from the run.
Options of_run(Options options, const RunShape& run) {
  if (run.shards == 0) return options;
  const auto take = [](const char* name, auto& mine, auto of_the_run) {
    if (mine != 0 && mine != of_the_run)
      throw UsageError("ddp::Options::{0} = {1}, but the run has {0} = {2} (Context::set_run); leave it out",
                       name, mine, of_the_run);
    mine = of_the_run;
  };
  take("shards", options.shards, run.shards);
  take("seed", options.seed, run.seed);
  return options;
}

}  // namespace

Tensor MicroBatch::rows(const Tensor& samples) const {
  const std::int64_t n = samples.size(0);
  return empty ? samples.rows(0, 0) : samples.rows(n * index / count, n * (index + 1) / count);
}

Batch MicroBatch::rows(const Batch& samples) const {
  if (!samples.is_ragged()) return samples.map([this](const Tensor& field) { return rows(field); });
  const std::int64_t n = samples.samples();
  return empty ? samples.rows(0, 0) : samples.rows(n * index / count, n * (index + 1) / count);
}

struct DataParallel::State {
  State(const ModelState& all, std::vector<Param*> trainable, comm::GradientTransport& world,
        kernels::Backend& device_backend, const Options& ddp_options, const comm::ShardMap& shard_map)
      : options(ddp_options),
        group(world.group()),
        backend(device_backend),
        model(all),
        map(shard_map),
        block(shard_map.block(group.rank())),
        bucket_partition(ddp_options.sharded_optimizer ? std::make_unique<BucketPartition>(all.params, world)
                                                       : nullptr),
        reducer(std::move(trainable), all.statistics, world, device_backend, shard_map, ddp_options,
                bucket_partition.get()),
        header(shard_map, reducer.schedule(), reducer.usage().items(), device_backend),
        capture(ddp_options, world, device_backend, model),
        timer(device_backend.make_timer()) {
    fill_ones(1);
    reads.reserve(3);  // losses, measurement, overflow check
    group_shards.reserve(static_cast<std::size_t>(block.count));
    if (bucket_partition)
      parameters =
          std::make_unique<ParameterBuffer>(model.params, *bucket_partition, world, device_backend,
                                            reducer.buffer().plan(), ddp_options.mode == Mode::overlapped);
    if (ddp_options.comm_dtype == DType::float16 && world.rounds(ddp_options.comm_dtype))
      overflow.emplace(model.params, group, device_backend,
                       bucket_partition ? &bucket_partition->partition() : nullptr);
    if (model.meets_across_ranks) layer_transport = world.duplicate();
  }

  void publish_and_measure();
  void check_unused();
  bool check_due() const {
    const auto every = static_cast<std::uint64_t>(options.check_every);
    return every > 0 && step > 0 && step % every == 0;
  }

  Options options;
  RunShape run;
  comm::HostGroup& group;
  kernels::Backend& backend;
  std::unique_ptr<comm::GradientTransport> layer_transport;
  ModelState model;
  comm::ShardMap map;
  comm::ShardRange block;
  std::unique_ptr<BucketPartition> bucket_partition;  // with a sharded optimizer
  Reducer reducer;
  std::unique_ptr<ParameterBuffer> parameters;  // with a sharded optimizer
  StepHeader header;
  StepCapture capture;
  Tensor ones;  // the gradients that backward starts with, one for each shard of a pass
  ShardsAtOnce shards_at_once;
  int comparisons_left = 4;         // of shards at once, in the first steps
  std::vector<Batch> group_shards;  // of the next pass
  std::unique_ptr<kernels::Timer> timer;
  std::optional<OverflowCheck> overflow;
  bool planned = false;

  /// Empty passes of this rank before its first shard, so that all ranks run the same number of passes.
  int empty_passes() const {
    return layer_transport ? (map.block(0).count - block.count) * options.micro_batches : 0;
  }

  std::uint64_t step = 0;
  std::uint64_t steps_begun = 0;
  Measurement* measurement = nullptr;    // of the current step
  std::vector<kernels::Transfer> reads;  // at its end
  int current_group = -1;                // of this rank's shards, counted from 0
  int pass = 0;                          // passes over it so far
  int passes = 0;
  std::exception_ptr error;
  double waited_ms = 0;         // for parameters, in the passes
  double waited_before_ms = 0;  // for parameters, between the last step's sums and this step
  Requests requests;
  StepResult last;

  Timeline* timeline = nullptr;
  double step_start_s = 0;
  double span_start_s = 0;  // of the current pass

  void end_span(const char* name) {
    if (!timeline) return;
    const double now_s = monotonic_s();
    timeline->add(name, Timeline::compute, static_cast<std::int64_t>(step),
                  std::exchange(span_start_s, now_s), now_s);
  }
  void record_step();

  void fill_ones(int shards) {
    ones = backend.empty({shards});
    backend.fill(ones, 1);
  }
  const AccumulationSchedule::Group& current() const {
    return reducer.schedule().groups()[static_cast<std::size_t>(current_group)];
  }
};

/// Publishes the gradients. Measurements of them are part of the step's only read from the device.
void DataParallel::State::publish_and_measure() {
  reducer.publish();
  reads.clear();
  reads.push_back(header.losses());
  if (measurement) {  // first: it may be collective, and the overflow check can fail on one rank
    end_span("wait for sums");
    reads.push_back(measurement->launch());
    end_span("measure gradients");
  }
  if (overflow) reads.push_back(overflow->ask(reducer));
}

void DataParallel::State::check_unused() {
  if (options.unused == Unused::allow) return;
  std::vector<std::size_t> missed;
  for (std::size_t i = 0; i < reducer.params().size(); ++i) {
    if (header.missed(i)) missed.push_back(i);
  }
  if (!missed.empty()) throw_unused(group, map, reducer.params(), missed, reducer.usage());
}

void DataParallel::State::record_step() {
  if (!timeline) return;
  const auto number = static_cast<std::int64_t>(step);
  timeline->add("step", Timeline::steps, number, step_start_s, monotonic_s());
  const auto at_s = [&](double ms) { return step_start_s + ms * 1e-3; };
  for (int row = Timeline::buckets; const BucketTime& bucket : reducer.bucket_times()) {
    timeline->add("waits for its turn", row, number, at_s(bucket.ready_ms), at_s(bucket.start_ms));
    timeline->add("sum", row++, number, at_s(bucket.start_ms), at_s(bucket.done_ms));
  }
}

DataParallel::DataParallel(const ModelState& model, comm::GradientTransport& transport,
                           kernels::Backend& backend, const Options& options)
    : DataParallel(model, transport, backend, options, 0) {}

DataParallel::DataParallel(const ModelState& model, Context& context, const Options& options)
    : DataParallel(model, context.transport(), context.backend(), of_run(options, context.run()),
                   context.run().global_batch) {}

DataParallel::DataParallel(const ModelState& model, comm::GradientTransport& transport,
                           kernels::Backend& backend, const Options& options, std::int64_t global_batch)
    : tape_(backend) {
  const progress::During wraps(Phase::wrapping);
  comm::HostGroup& group = transport.group();
  const comm::NamedCall call(group, "wraps a model in DataParallel");
  const ModelState leaves = without_repeats(model);
  check_same_model(group, leaves, options);
  options.check(group.size());
  comm::run_on_all(group, [&] {  // each rank has its own device
    check_own_weights(leaves);
    for (const Param* const param : leaves.params) check_device(param->name, param->value, backend);
    for (const Buffer* const buffer : leaves.buffers) check_device(buffer->name, buffer->value, backend);
  });
  std::vector<Param*> trainable = trainable_params(leaves.params);
  for (const Param* const param : leaves.params)
    param->wait_ready();  // another DataParallel may still gather them
  broadcast_values(group, leaves, backend);
  const comm::ShardMap map(options.shards == 0 ? group.size() : options.shards, group.size());
  state_ = std::make_unique<State>(leaves, std::move(trainable), transport, backend, options, map);
  state_->run = {.global_batch = global_batch, .shards = map.shards(), .seed = options.seed};
}

DataParallel::~DataParallel() {
  const progress::During teardown(Phase::teardown);
  comm::meet_at_end(state_->group, "destroys a DataParallel (its scope ends)");
  state_->reducer.withdraw();  // gradients are views of its memory
}

void DataParallel::check_replicas() const {
  const State& state = *state_;
  const comm::NamedCall call(state.group, "calls DataParallel::check_replicas");
  const std::string apart = differing_values(state.group, replicated_values(state.model), &state.backend);
  if (apart.empty()) return;
  throw TrainingError(
      "the replicas differ: {}; resume from the last checkpoint, and if it happens again look for different "
      "code paths of ranks, or for a node with faulty memory",
      apart);
}

void DataParallel::record(Timeline* timeline) { state_->timeline = timeline; }

void DataParallel::request(const Requests& requests) {
  state_->requests = Requests::from_bits(state_->requests.to_bits() | requests.to_bits());
}

void DataParallel::begin_step(std::uint64_t step, bool takes_micro_batches, Measurement* measurement) {
  State& state = *state_;
  if (!takes_micro_batches && state.options.micro_batches > 1)
    throw UsageError("train.micro_batches = {} needs a loss that takes a micro-batch of a shard",
                     state.options.micro_batches);
  if (!takes_micro_batches && state.layer_transport && state.map.shards() % state.map.ranks() != 0)
    throw UsageError(
        "{} shards on {} ranks and a layer that meets across ranks need a loss that takes a "
        "micro-batch of a shard",
        state.map.shards(), state.map.ranks());
  if (state.parameters) {
    state.parameters->begin_step();
    // A rank that waits inside a layer cannot advance other collectives.
    if (state.layer_transport) state.parameters->wait_ready();
    state.waited_before_ms = state.parameters->take_waited_ms();
  }
  progress::status().step.store(static_cast<std::int64_t>(step) + 1, std::memory_order_relaxed);
  progress::status().bucket.store(-1, std::memory_order_relaxed);
  progress::enter(Phase::data);
  state.timer->mark(moment_of_start);
  state.step_start_s = monotonic_s();
  state.step = step;
  ++state.steps_begun;
  state.measurement = measurement;
  state.error = nullptr;
  state.capture.begin_step(step);
  begin_passes();
}

void DataParallel::begin_passes() {
  State& state = *state_;
  state.current_group = -1;
  state.pass = state.passes = 0;
  state.group_shards.clear();
  state.header.begin(state.step);
  state.reducer.begin_step(state.step);
}

bool DataParallel::may_capture() const { return state_->capture.enabled(); }

void DataParallel::add_shard(std::int64_t index, std::span<const Tensor> tensors, bool ragged) {
  state_->capture.add_shard(index, tensors, ragged);
}

int DataParallel::shards_of_next_pass() const {
  return state_->reducer.schedule().shards_of(state_->current_group + 1);
}

void DataParallel::add_to_group(const Batch& shard) { state_->group_shards.push_back(shard); }

Batch DataParallel::joined_group() {
  State& state = *state_;
  if (static_cast<int>(state.group_shards.size()) != shards_of_next_pass())
    throw UsageError("the batch of step {} ended within shards that one pass computes", state.step);
  return joined_rows(state.group_shards, state.backend);
}

bool DataParallel::may_join() const {
  return state_->comparisons_left > 0 || state_->shards_at_once.shards > 1;
}

void DataParallel::run_passes(const std::function<void()>& passes, Joins joins) {
  State& state = *state_;
  check_own_weights(state.model);
  if (!state.layer_transport && std::ranges::any_of(state.model.statistics, &Statistic::meets_across_ranks))
    throw UsageError(
        "a layer communicates with other ranks (convert_sync_batch_norm) since the construction of the "
        "DataParallel; convert the model before it");
  const bool now = joins == Joins::now;
  if (state.comparisons_left > 0 && (now || state.shards_at_once.shards == 1))
    compare_shards_at_once(passes, joins);
  else if (state.shards_at_once.shards > 1 && now != (state.reducer.schedule().largest_group() > 1))
    state.reducer.set_shards_at_once(now ? state.shards_at_once.shards : 1);
  state.capture.run(
      state.planned && state.comparisons_left == 0,
      {.passes = passes,
       .refresh_weights = [this](bool all) { tape_.refresh_weights(state_->model.params, all); },
       .begin_capture = [this] { state_->reducer.begin_capture(); },
       .end_capture = [this] { order_sums(); },
       .clear = [this] { tape_.begin({}); },
       .begin_again = [this] { begin_passes(); },
       .usage = [this]() -> const Usage& { return state_->reducer.usage(); },
       .launch =
           [this](kernels::Graph& graph, const Usage& usage) {
             progress::enter(Phase::forward);
             state_->span_start_s = monotonic_s();
             graph.launch(state_->step);
             state_->reducer.launched(usage);
             state_->end_span("launch");
           }});
}

/// Runs the passes of a step in both ways, and keeps to single shards if the sums differ. Gradients that are
/// zero at first, behind layers that begin at zero, are compared in later steps, before one is captured.
void DataParallel::compare_shards_at_once(const std::function<void()>& passes, Joins joins) {
  State& state = *state_;
  ShardsAtOnce& at_once = state.shards_at_once;
  const int asked = state.options.shards_at_once, left = std::exchange(state.comparisons_left, 0);
  if (state.block.count < 2 || asked == 1 || (asked == 0 && state.backend.device() == Device::cpu())) return;
  at_once.refused = why_single(state.options, state.layer_transport != nullptr, joins != Joins::never);
  if (at_once.refused.empty() && joins == Joins::not_now && (state.comparisons_left = left - 1) == 0)
    at_once.refused =
        "shards of the first steps differ in a field's shape or type, have samples of different sizes, or "
        "are "
        "not on the device";
  if (!at_once.refused.empty() || joins == Joins::not_now) return;
  const Trial trial(state.reducer, state.timeline);
  const auto run_all = [&](int shards) {
    state.reducer.set_shards_at_once(shards);
    state.fill_ones(shards);
    begin_passes();
    passes();
    tape_.begin({});
    return SumDigests(state.reducer, state.header);
  };
  const std::size_t reserved_before = state.backend.reserved_bytes();
  const SumDigests alone = run_all(1);
  const std::size_t bytes_of_one = state.backend.reserved_bytes() - reserved_before;
  const int wanted = at_once.shards > 1 ? at_once.shards : std::min(asked, state.block.count);
  int most = wanted > 0 ? wanted : most_at_once(state.reducer, bytes_of_one);
  at_once = {.shards = 1, .refused = most > 1 || asked > 0 ? "" : "the device has no memory for two"};
  for (bool again = true; again && most > 1; most /= 2) {
    again = false;
    try {
      at_once.refused = alone.difference(run_all(most));
      if (at_once.refused.empty()) at_once.shards = state.reducer.schedule().largest_group();
    } catch (const FailureError& error) {  // the device may have memory for fewer
      at_once.refused = error.what();
      again = true;
    } catch (const std::exception& error) {  // what reads shards may not read several
      at_once.refused = error.what();
    }
  }
  if (at_once.shards == 1)
    state.reducer.keep_single_shards();
  else if (alone.any_zero())
    state.comparisons_left = left - 1;
  tape_.begin({});
  begin_passes();
}

bool DataParallel::can_join(const Batch& a, const Batch& b) const {
  return joins(a, b, state_->backend.device());
}

int DataParallel::begin_shard(std::int64_t index) {
  State& state = *state_;
  const int next = state.current_group < 0 ? 0 : state.current().first + state.current().count;
  const int due = state.block.first + next;
  if (due == state.block.end() || index != due)
    throw UsageError("the batch of step {} holds shard {} as number {}; this rank runs shards {} to {}",
                     state.step, index, next, state.block.first, state.block.end() - 1);
  ++state.current_group;
  state.pass = 0;
  state.passes = state.options.micro_batches + (state.current_group == 0 ? state.empty_passes() : 0);
  state.reducer.begin_group(state.current_group, state.passes);
  return state.passes;
}

MicroBatch DataParallel::begin_pass() {
  State& state = *state_;
  const int count = state.options.micro_batches, index = state.pass - (state.passes - count);
  state.span_start_s = state.timeline ? monotonic_s() : 0;
  const MicroBatch micro_batch{.index = std::max(index, 0), .count = count, .empty = index < 0};
  progress::enter(Phase::forward);
  const AccumulationSchedule::Group& group = state.current();
  const int shard = state.block.first + group.first;
  tape_.begin({.training = true,
               .record = true,
               .seed = state.options.seed,
               .step = state.step,
               // Each micro-batch draws other random numbers.
               .shard = static_cast<std::uint32_t>(shard * count + micro_batch.index),
               .shards = group.count,
               .sink = &state.reducer,
               .layer_transport = state.layer_transport.get(),
               .compute = state.options.compute,
               .same_parameters = state.current_group > 0 || state.pass > 0});
  return micro_batch;
}

void DataParallel::end_pass(const Loss& loss) {
  State& state = *state_;
  state.end_span("forward");
  progress::enter(Phase::backward);
  const AccumulationSchedule::Group& group = state.current();
  if (group.count > 1 && (!loss.total || !(loss.sum.shape() == tape_.of_each_shard({}))))
    throw UsageError("the loss is not one for each of {} shards (loss_of_samples)", group.count);
  state.header.add_loss(group, state.pass == 0, loss.total);
  state.reducer.begin_backward(tape_.used_params());
  tape_.backward(loss.sum, state.ones.rows(0, group.count).reshape(tape_.of_each_shard({})));
  tape_.finish_backward();
  state.reducer.end_pass();
  state.end_span("backward");
  if (++state.pass == state.passes) {
    state.header.end_group(group);
    state.group_shards.clear();  // whose memory the pass has read
  }
  progress::enter(Phase::data);
}

void DataParallel::check_batch_was_whole() const {
  const State& state = *state_;
  const int done = state.current_group < 0 ? 0 : state.current().first + state.current().count;
  if (done != state.block.count)
    throw UsageError("the batch of step {} ended after {} of this rank's {} shards", state.step, done,
                     state.block.count);
}

void DataParallel::fail(std::exception_ptr error) {
  State& state = *state_;
  // Ranks that wait inside a layer cannot be informed: this rank alone throws, which ends the world.
  if (state.layer_transport || state.reducer.state() == Reducer::State::broken ||
      (state.parameters && state.parameters->transport_failed()))
    std::rethrow_exception(error);
  state.capture.fail();
  state.error = std::move(error);
  try {
    state.reducer.abandon();
  } catch (...) {  // the transport fails as well: the first error is the cause
    std::rethrow_exception(state.error);
  }
}

void DataParallel::order_sums() {
  State& state = *state_;
  state.timer->mark(moment_of_backward_end);
  state.waited_ms = state.parameters ? state.parameters->take_waited_ms() : 0;
  state.span_start_s = monotonic_s();
  tape_.begin({});  // frees activations while sums arrive, and parameters for another tape
  progress::enter(Phase::sums);
  state.reducer.order_after();
  state.timer->mark(moment_of_sums);
}

StepResult DataParallel::finish_step() {
  const struct Leaves {
    ~Leaves() { progress::enter(Phase::program); }
  } leaves;
  try {
    return conclude_step();
  } catch (...) {
    state_->reducer.withdraw();
    throw;
  }
}

StepResult DataParallel::conclude_step() {
  State& state = *state_;
  StepResult result;
  result.step = state.step;
  if (state.reducer.state() != Reducer::State::waiting) order_sums();  // otherwise a graph has
  progress::enter(Phase::sums);
  std::exception_ptr error;
  try {
    state.publish_and_measure();
  } catch (...) {
    error = std::current_exception();
  }
  state.reducer.finish();
  state.end_span("wait for sums");
  progress::enter(Phase::header);
  try {
    if (error) std::rethrow_exception(error);
    state.backend.read(state.reads);  // the step's only wait for the device
    // By the device's clock, as the program may be ahead of the device.
    result.compute_ms = state.timer->elapsed_ms(moment_of_start, moment_of_backward_end) - state.waited_ms;
    result.exposed_comm_ms = state.timer->elapsed_ms(moment_of_backward_end, moment_of_sums);
  } catch (...) {
    // A device may report an error as late as now. Every bucket has started: the header informs the other
    // ranks.
    if (!state.error) fail(std::current_exception());
  }
  const Stopwatch exchanging;
  state.header.exchange(state.group, plan().hash(), state.requests, state.error != nullptr, result.compute_ms,
                        state.reducer.usage());
  result.exposed_comm_ms += exchanging.elapsed_ms();
  if (state.parameters) {
    state.parameters->take_waited_ms();  // since order_sums: exposed_comm_ms has it
    result.exposed_comm_ms += state.waited_ms + state.waited_before_ms;
  }
  state.end_span("step header");

  if (state.header.any_failed()) {
    comm::run_on_all(state.group, [&] {
      if (state.error) std::rethrow_exception(state.error);
    });
  }
  state.header.check_agreement();
  const ops::CountedSum loss = state.header.loss();
  result.loss_sum = loss.sum;
  result.count = loss.count;
  state.last = result;
  if (state.check_due()) check_replicas();
  state.check_unused();
  check_loss(state.header, state.step, state.options);
  if (state.overflow && std::isfinite(loss.sum)) state.overflow->check(state.reducer.params(), state.step);
  result.requests = state.header.requests();
  state.requests = {};
  state.record_step();
  if (!state.planned) {
    state.reducer.replan();
    if (state.parameters) state.parameters->adopt(plan());
    state.planned = true;
  }
  state.reducer.agree(state.header);
  return result;
}

std::span<Param* const> DataParallel::params() const { return state_->model.params; }
double DataParallel::compute_ms_of(int rank) const { return state_->header.compute_ms(rank); }
const StepResult& DataParallel::last_result() const { return state_->last; }
const ShardsAtOnce& DataParallel::shards_at_once() const { return state_->shards_at_once; }
const CapturedSteps& DataParallel::captured_steps() const { return state_->capture.so_far(); }
double DataParallel::count() const { return state_->last.count; }
std::uint64_t DataParallel::steps_begun() const { return state_->steps_begun; }
kernels::Backend& DataParallel::backend() const { return state_->backend; }
RunShape DataParallel::run() const { return state_->run; }
const Partition* DataParallel::partition() const {
  return state_->bucket_partition ? &state_->bucket_partition->partition() : nullptr;
}
void DataParallel::updated(std::size_t param) {
  if (state_->parameters) state_->parameters->updated(param);
}
const Options& DataParallel::options() const { return state_->options; }
comm::HostGroup& DataParallel::group() const { return state_->group; }
comm::GradientTransport* DataParallel::layer_transport() const { return state_->layer_transport.get(); }
const comm::ShardMap& DataParallel::shard_map() const { return state_->map; }
const BucketPlan& DataParallel::plan() const { return state_->reducer.buffer().plan(); }
std::span<const BucketTime> DataParallel::bucket_times() const { return state_->reducer.bucket_times(); }
int DataParallel::accumulation_buffers() const { return state_->reducer.buffer().accumulation_buffers(); }
std::size_t DataParallel::accumulation_buffer_bytes() const {
  return state_->reducer.buffer().accumulation_buffer_bytes();
}

std::size_t DataParallel::device_bytes() const {
  return state_->backend.reserved_bytes() +
         accumulation_buffer_bytes() * static_cast<std::size_t>(accumulation_buffers());
}

std::string DataParallel::describe() const {
  const State& state = *state_;
  std::size_t largest = 0;
  for (const BucketPlan::Bucket& bucket : plan().buckets()) largest = std::max(largest, bucket.bytes);
  const std::int64_t check_every = state.options.check_every;
  return fmt::format("{} on {}, at most {} a rank; {} of up to {:.2f} MiB; {} of {:.2f} MiB{}{}",
                     pluralized(state.map.shards(), "shard"), pluralized(state.map.ranks(), "rank"),
                     state.map.block(0).count, pluralized(plan().buckets().size(), "bucket"),
                     static_cast<double>(largest) / bytes_per_mib,
                     pluralized(accumulation_buffers(), "accumulation buffer"),
                     static_cast<double>(accumulation_buffer_bytes()) / bytes_per_mib,
                     state.parameters ? "; each rank updates a partition of the parameters" : "",
                     check_every == 0   ? ""
                     : check_every == 1 ? "; replicas are compared every step"
                                        : fmt::format("; replicas are compared every {} steps", check_every));
}

}  // namespace lockstep::ddp
