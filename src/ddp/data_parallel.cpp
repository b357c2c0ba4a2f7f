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
#include "ddp/parameter_arena.h"
#include "ddp/reducer.h"
#include "ddp/step_header.h"
#include "ddp/step_recorder.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/ops/loss.h"

namespace lockstep::ddp {
namespace {

using progress::Phase;

constexpr double bytes_per_mib = 1 << 20;

// Of a step, for its Timer.
constexpr int moment_of_start = 0, moment_of_backward_end = 1, moment_of_sums = 2;

/// The same on every rank.
void check_loss(const StepHeader& header, std::uint64_t step, const Options& options) {
  const ops::WeightedSum loss = header.loss();
  const double mean = loss.sum / loss.weight;
  if (std::isfinite(mean) || loss.weight == 0 || options.allow_non_finite_loss) return;
  const std::optional<comm::ShardRange> shards = header.shards_not_finite();
  const auto name = [](const comm::ShardRange& range) {
    return range.count == 1 ? fmt::format("shard {}", range.first)
                            : fmt::format("shards {} to {}", range.first, range.end() - 1);
  };
  throw TrainingError("step {}: the loss is {}; {}", step + 1, std::isnan(mean) ? "nan" : "infinite",
                      shards
                          ? fmt::format("it is finite but for {}: look at its samples first", name(*shards))
                          : "lower optimizer.lr, set optimizer.clip, or look at the data");
}

}  // namespace

Tensor Piece::rows(const Tensor& samples) const {
  const std::int64_t n = samples.size(0);
  return empty ? samples.rows(0, 0) : samples.rows(n * index / count, n * (index + 1) / count);
}

struct DataParallel::State {
  State(const ModelState& all, std::vector<Param*> trainable, comm::GradientTransport& world,
        kernels::Backend& device_backend, const Options& wanted, const comm::ShardMap& shard_map)
      : options(wanted),
        communicator(world.group()),
        backend(device_backend),
        model(all),
        map(shard_map),
        block(shard_map.block(communicator.rank())),
        slicer(wanted.sharded_optimizer ? std::make_unique<BucketSlicer>(all.params, world) : nullptr),
        reducer(std::move(trainable), all.statistics, world, device_backend, shard_map, wanted, slicer.get()),
        header(shard_map, reducer.schedule(), reducer.usage().items(), device_backend),
        recorder(wanted, world, device_backend, model),
        one(device_backend.empty({})),
        timer(device_backend.make_timer()) {
    device_backend.fill(one, 1);
    reads.reserve(3);  // losses, and what two others ask for
    if (slicer)
      parameters = std::make_unique<ParameterArena>(model.params, *slicer, world, device_backend,
                                                    reducer.arena().plan(), wanted.mode == Mode::overlapped);
    if (wanted.wire == DType::float16 && world.rounds(wanted.wire))
      overflow.emplace(model.params, communicator, device_backend, slicer ? &slicer->sharding() : nullptr);
    if (wanted.layer_communicator) layer_communicator = world.duplicate();
  }

  /// The sums have been asked for: so is what is wanted of them, and what is then read is noted.
  void ask();
  /// The step's one wait for the device.
  void read();
  /// Gradients become views of the sums; statistics are handed to their owners.
  void publish_sums();
  void check_unused();
  bool check_due() const {
    const auto every = static_cast<std::uint64_t>(options.check_every);
    return every > 0 && step > 0 && step % every == 0;
  }

  Options options;
  comm::HostGroup& communicator;
  kernels::Backend& backend;
  std::unique_ptr<comm::GradientTransport> layer_communicator;
  ModelState model;
  comm::ShardMap map;
  comm::ShardRange block;
  std::unique_ptr<BucketSlicer> slicer;  // with a sharded optimizer
  Reducer reducer;
  std::unique_ptr<ParameterArena> parameters;  // with a sharded optimizer
  StepHeader header;
  StepRecorder recorder;
  Tensor one;  // the gradient that backward starts with
  std::unique_ptr<kernels::Timer> timer;
  std::optional<OverflowCheck> overflow;
  bool planned = false;

  /// Passes of no samples that this rank runs before its first shard, so that all run equally many.
  int empty_passes() const {
    return layer_communicator ? (map.block(0).count - block.count) * options.micro_batches : 0;
  }

  std::uint64_t step = 0;
  std::uint64_t steps_begun = 0;
  Measurement* measurement = nullptr;    // of the step at hand
  std::vector<kernels::Transfer> reads;  // to come at its end
  int turn = -1;                         // this rank's shard at hand, counted from 0
  int pass = 0;                          // passes over it so far
  int passes = 0;
  std::exception_ptr error;
  bool sums_asked = false;      // the end of the passes is behind this
  double waited_ms = 0;         // for parameters, in the passes
  double waited_before_ms = 0;  // for parameters, between the last step's sums and this step
  Requests requests;
  double weight = 0;

  Timeline* timeline = nullptr;
  double step_start_s = 0;
  double span_start_s = 0;  // of the pass at hand

  void end_span(const char* name) {
    if (!timeline) return;
    const double now_s = monotonic_s();
    timeline->add(name, Timeline::compute, static_cast<std::int64_t>(step),
                  std::exchange(span_start_s, now_s), now_s);
  }
  void record_step();

  void drop_gradients() {
    for (Param* const param : reducer.params()) param->gradient = {};
  }
};

void DataParallel::State::ask() {
  reads.clear();
  reads.push_back(header.losses());
  if (measurement) {  // first: ranks may meet in it, and what comes after it can fail on one of them
    end_span("wait for sums");
    for (std::size_t i = 0; i < reducer.params().size(); ++i)
      reducer.params()[i]->gradient = reducer.sum(static_cast<int>(i));
    reads.push_back(measurement->ask());
    drop_gradients();  // the header will tell which of them there are
    end_span("measure gradients");
  }
  if (overflow) reads.push_back(overflow->ask(reducer));
}

void DataParallel::State::read() {
  backend.read(reads);
  reads.clear();
}

void DataParallel::State::publish_sums() {
  for (std::size_t i = 0; i < reducer.params().size(); ++i) {
    if (header.written(i)) reducer.params()[i]->gradient = reducer.sum(static_cast<int>(i));
  }
  for (std::size_t i = 0; i < reducer.statistics().size(); ++i) {
    if (header.written(reducer.params().size() + i))
      reducer.statistics()[i]->apply(backend, reducer.statistic_sum(static_cast<int>(i)));
  }
}

void DataParallel::State::check_unused() {
  if (options.unused == Unused::allow) return;
  std::vector<std::size_t> missed;
  for (std::size_t i = 0; i < reducer.params().size(); ++i) {
    if (header.missed(i)) missed.push_back(i);
  }
  if (!missed.empty()) throw_unused(communicator, map, reducer.params(), missed, reducer.usage());
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
    : tape_(backend) {
  comm::HostGroup& communicator = transport.group();
  const ModelState leaves = without_repeats(model);
  check_same_model(communicator, leaves, options);
  check_options(options, communicator.size());
  for (const Param* const param : leaves.params) check_device(param->name, param->value, backend);
  for (const Buffer* const buffer : leaves.buffers) check_device(buffer->name, buffer->value, backend);
  std::vector<Param*> trainable = trainable_params(leaves.params);
  for (const Param* const param : leaves.params)
    param->settle();  // another wrapper may still be sending them
  broadcast_values(communicator, leaves, backend);
  const comm::ShardMap map(options.shards == 0 ? communicator.size() : options.shards, communicator.size());
  state_ = std::make_unique<State>(leaves, std::move(trainable), transport, backend, options, map);
}

DataParallel::~DataParallel() {
  // Gradients are views of memory that goes now.
  state_->drop_gradients();
}

void DataParallel::check_replicas() const {
  const State& state = *state_;
  ddp::check_replicas(state.communicator, state.backend, plan(), state.reducer.params(), state.model);
}

void DataParallel::record(Timeline* timeline) { state_->timeline = timeline; }

void DataParallel::request(const Requests& requests) {
  Requests& pending = state_->requests;
  pending.stop_preempted = pending.stop_preempted || requests.stop_preempted;
  pending.stop_user = pending.stop_user || requests.stop_user;
  pending.checkpoint = pending.checkpoint || requests.checkpoint;
  pending.saving = pending.saving || requests.saving;
  pending.save_failed = pending.save_failed || requests.save_failed;
}

void DataParallel::begin_step(std::uint64_t step, bool takes_pieces, Measurement* measurement) {
  State& state = *state_;
  if (!takes_pieces && state.options.micro_batches > 1)
    throw UsageError("train.micro_batches = {} needs a loss that takes a piece of a shard",
                     state.options.micro_batches);
  if (!takes_pieces && state.layer_communicator && state.map.shards() % state.map.ranks() != 0)
    throw UsageError(
        "{} shards on {} ranks and a layer that meets across ranks need a loss that takes a piece "
        "of a shard",
        state.map.shards(), state.map.ranks());
  if (state.parameters) {
    state.parameters->begin_step();
    // A rank that waits inside a layer moves nothing else on.
    if (state.layer_communicator) state.parameters->settle();
    state.waited_before_ms = state.parameters->take_waited_ms();
  }
  progress::enter(Phase::data);
  state.timer->mark(moment_of_start);
  state.step_start_s = monotonic_s();
  state.step = step;
  ++state.steps_begun;
  state.measurement = measurement;
  state.error = nullptr;
  state.drop_gradients();
  state.recorder.begin_step();
  begin_passes();
}

void DataParallel::begin_passes() {
  State& state = *state_;
  state.turn = -1;
  state.pass = state.passes = 0;
  state.sums_asked = false;
  state.header.begin(state.step);
  state.reducer.begin_step(state.step);
}

bool DataParallel::notes_shards() const { return state_->recorder.wanted(); }

void DataParallel::note_shard(std::int64_t index, const Tensor& x, const Tensor& y) {
  state_->recorder.note(index, x, y);
}

void DataParallel::run_passes(const std::function<void()>& passes) {
  StepRecorder& recorder = state_->recorder;
  const StepRecorder::Way way = recorder.choose(state_->planned);
  if (way == StepRecorder::Way::plain) {
    passes();
    return recorder.check_refusal();
  }
  if (way == StepRecorder::Way::replay) return replay_passes();
  if (const std::string refused = record_passes(passes); !refused.empty()) {
    begin_passes();
    passes();  // what stands against any step is told from here
    recorder.check_refusal();
  }
}

/// Why it came to nothing; empty: it did not.
std::string DataParallel::record_passes(const std::function<void()>& passes) {
  State& state = *state_;
  tape_.begin({});  // tensors of passes before are no part of it
  std::unique_ptr<kernels::Recording> recording;
  std::string refused;
  try {
    const std::unique_ptr<kernels::Recorder> noting = state.backend.record();
    state.reducer.record(true);
    passes();
    ask_for_sums();
    recording = noting->finish();
  } catch (const std::exception& error) {
    refused = error.what();
  }
  state.reducer.record(false);
  tape_.begin({});
  if (!state.recorder.keep(std::move(recording), state.reducer.usage(), std::move(refused)))
    return state.recorder.so_far().refused;
  try {
    replay_passes();
    return {};
  } catch (const std::exception& error) {  // the device has no space for it
    if (state.communicator.size() > 1) throw;
    state.recorder.refuse(error.what());
    return error.what();
  }
}

void DataParallel::replay_passes() {
  State& state = *state_;
  progress::enter(Phase::forward);
  state.span_start_s = monotonic_s();
  state.reducer.replayed(state.recorder.replay());
  state.sums_asked = true;
  state.end_span("replay");
}

int DataParallel::begin_shard(std::int64_t index) {
  State& state = *state_;
  const int due = state.block.first + state.turn + 1;
  if (due == state.block.end() || index != due)
    throw UsageError("the batch of step {} holds shard {} as number {}; this rank runs shards {} to {}",
                     state.step, index, state.turn + 1, state.block.first, state.block.end() - 1);
  ++state.turn;
  state.pass = 0;
  state.passes = state.options.micro_batches + (state.turn == 0 ? state.empty_passes() : 0);
  state.reducer.begin_shard(state.turn);
  return state.passes;
}

Piece DataParallel::begin_pass() {
  State& state = *state_;
  const int pieces = state.options.micro_batches, index = state.pass - (state.passes - pieces);
  state.span_start_s = state.timeline ? monotonic_s() : 0;
  const Piece piece{.index = std::max(index, 0), .count = pieces, .empty = index < 0};
  progress::enter(Phase::forward);
  state.reducer.begin_pass(state.pass + 1 == state.passes);
  tape_.begin({.training = true,
               .record = true,
               .seed = state.options.seed,
               .step = state.step,
               // Each piece draws its own random numbers.
               .shard = static_cast<std::uint32_t>((state.block.first + state.turn) * pieces + piece.index),
               .sink = &state.reducer,
               .layer_communicator = state.layer_communicator.get(),
               .compute = state.options.compute,
               .same_parameters = state.turn > 0 || state.pass > 0});
  return piece;
}

void DataParallel::end_pass(const Loss& loss) {
  State& state = *state_;
  state.end_span("forward");
  progress::enter(Phase::backward);
  state.header.add_loss(state.turn, state.pass == 0, loss.total);
  state.reducer.begin_backward(tape_.used_params());
  tape_.backward(loss.sum, state.one);
  tape_.finish_backward();
  state.reducer.end_pass();
  state.end_span("backward");
  if (++state.pass == state.passes) state.header.end_shard(state.turn);
  progress::enter(Phase::data);
}

void DataParallel::check_batch_was_whole() const {
  const State& state = *state_;
  if (state.turn + 1 != state.block.count)
    throw UsageError("the batch of step {} ended after {} of this rank's {} shards", state.step,
                     state.turn + 1, state.block.count);
}

void DataParallel::fail(std::exception_ptr error) {
  // Peers may be waiting inside a layer, where nothing can tell them: the error leaves alone, and ends the
  // world.
  if (state_->layer_communicator) std::rethrow_exception(error);
  if (state_->reducer.transport_failed()) std::rethrow_exception(error);
  if (state_->parameters && state_->parameters->transport_failed()) std::rethrow_exception(error);
  state_->recorder.fail();
  state_->error = std::move(error);
  try {
    state_->reducer.abandon();
  } catch (...) {  // the transport has failed as well: what came first is what to look for
    std::rethrow_exception(state_->error);
  }
}

void DataParallel::ask_for_sums() {
  State& state = *state_;
  state.timer->mark(moment_of_backward_end);
  state.waited_ms = state.parameters ? state.parameters->take_waited_ms() : 0;
  state.span_start_s = monotonic_s();
  tape_.begin({});  // activations may go while sums arrive, and parameters are free for another tape
  progress::enter(Phase::sums);
  state.reducer.wait();
  state.timer->mark(moment_of_sums);
  state.sums_asked = true;
}

StepResult DataParallel::finish_step() {
  State& state = *state_;
  StepResult result;
  result.step = state.step;
  if (!state.sums_asked) ask_for_sums();
  progress::enter(Phase::sums);
  const double waited_ms = state.waited_ms;
  std::exception_ptr error;
  try {
    state.ask();
  } catch (...) {
    state.drop_gradients();
    error = std::current_exception();
  }
  state.reducer.complete();
  state.end_span("wait for sums");
  progress::enter(Phase::header);
  try {
    if (error) std::rethrow_exception(error);
    state.read();
    // Of the device's time, which the program may have been ahead of.
    result.compute_ms = state.timer->elapsed_ms(moment_of_start, moment_of_backward_end) - waited_ms;
    result.exposed_comm_ms = state.timer->elapsed_ms(moment_of_backward_end, moment_of_sums);
  } catch (...) {
    // A device that runs behind may have told it only now. Every bucket has been started: the header carries
    // it on.
    if (!state.error) fail(std::current_exception());
  }
  const Stopwatch exchanging;
  state.header.exchange(state.communicator, state.reducer.arena().plan().hash(), state.requests,
                        state.error != nullptr, result.compute_ms, state.reducer.usage());
  result.exposed_comm_ms += exchanging.elapsed_ms();
  if (state.parameters) {
    state.parameters->take_waited_ms();  // since then: a part of exposed_comm_ms already
    result.exposed_comm_ms += waited_ms + state.waited_before_ms;
  }
  state.end_span("step header");

  if (state.header.any_failed()) {
    comm::run_on_all(state.communicator, [&] {
      if (state.error) std::rethrow_exception(state.error);
    });
  }
  state.header.check_agreement();
  if (state.check_due()) check_replicas();
  state.check_unused();
  const ops::WeightedSum loss = state.header.loss();
  check_loss(state.header, state.step, state.options);
  if (state.overflow && std::isfinite(loss.sum)) state.overflow->check(state.reducer.params(), state.step);
  result.loss_sum = loss.sum;
  result.weight = state.weight = loss.weight;
  result.requests = state.header.requests();
  state.requests = {};
  state.record_step();
  if (!state.planned) {
    state.reducer.replan();
    if (state.parameters) state.parameters->adopt(state.reducer.arena().plan());
    state.planned = true;
  }
  state.publish_sums();
  return result;
}

std::span<Param* const> DataParallel::params() const { return state_->model.params; }
double DataParallel::compute_ms_of(int rank) const { return state_->header.compute_ms(rank); }
const StepsRecorded& DataParallel::steps_recorded() const { return state_->recorder.so_far(); }
double DataParallel::weight() const { return state_->weight; }
std::uint64_t DataParallel::steps_begun() const { return state_->steps_begun; }
kernels::Backend& DataParallel::backend() const { return state_->backend; }
const Sharding* DataParallel::sharding() const {
  return state_->slicer ? &state_->slicer->sharding() : nullptr;
}
void DataParallel::updated(std::size_t param) {
  if (state_->parameters) state_->parameters->updated(param);
}
const Options& DataParallel::options() const { return state_->options; }
comm::HostGroup& DataParallel::communicator() const { return state_->communicator; }
comm::GradientTransport* DataParallel::layer_communicator() const { return state_->layer_communicator.get(); }
const comm::ShardMap& DataParallel::shard_map() const { return state_->map; }
const BucketPlan& DataParallel::plan() const { return state_->reducer.arena().plan(); }
std::span<const BucketTime> DataParallel::bucket_times() const { return state_->reducer.bucket_times(); }
int DataParallel::planes() const { return state_->reducer.arena().planes(); }
std::size_t DataParallel::plane_bytes() const { return state_->reducer.arena().plane_bytes(); }

std::string DataParallel::describe() const {
  const State& state = *state_;
  std::size_t largest = 0;
  for (const BucketPlan::Bucket& bucket : plan().buckets()) largest = std::max(largest, bucket.bytes);
  const std::int64_t check_every = state.options.check_every;
  return fmt::format(
      "{} on {}, at most {} a rank; {} of up to {:.2f} MiB; gradient memory {} of {:.2f} MiB{}{}",
      pluralized(state.map.shards(), "shard"), pluralized(state.map.ranks(), "rank"),
      state.map.block(0).count, pluralized(plan().buckets().size(), "bucket"),
      static_cast<double>(largest) / bytes_per_mib, pluralized(planes(), "plane"),
      static_cast<double>(plane_bytes()) / bytes_per_mib,
      state.parameters ? "; each rank updates a part of the parameters" : "",
      check_every == 0   ? ""
      : check_every == 1 ? "; replicas are compared every step"
                         : fmt::format("; replicas are compared every {} steps", check_every));
}

}  // namespace lockstep::ddp
