#include "ddp/reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/progress.h"
#include "lockstep/base/error.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::ddp {
namespace {

/// The plan before the first step: backward usually uses parameters in reverse order of registration.
BucketPlan first_plan(std::span<Param* const> params, const BucketLimits& limits) {
  std::vector<BucketPlan::Gradient> gradients;
  for (const Param* const param : params)
    gradients.push_back({param->name, param->value.shape(), DType::float32});
  std::vector<int> order(params.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return BucketPlan(std::move(gradients), order, limits);
}

BucketLimits limits_of(const Options& options) {
  constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
  const auto bytes = [](double mib) { return static_cast<std::size_t>(std::ceil(mib * (1 << 20))); };
  if (options.mode == Mode::flat) return {.first_bytes = all, .other_bytes = all};
  if (options.mode == Mode::per_parameter) return {.first_bytes = 1, .other_bytes = 1};
  return {.first_bytes = bytes(options.first_bucket_mb), .other_bytes = bytes(options.bucket_mb)};
}

}  // namespace

Reducer::Reducer(std::vector<Param*> params, std::vector<Statistic*> statistics,
                 comm::GradientTransport& transport, kernels::Backend& backend, const comm::ShardMap& map,
                 const Options& options, const BucketPartition* bucket_partition)
    : params_(std::move(params)),
      statistics_(std::move(statistics)),
      transport_(transport),
      backend_(backend),
      map_(map),
      schedule_(map.shards(), map.block(transport.group().rank())),
      options_(options),
      bucket_partition_(bucket_partition),
      buffer_(transport, first_plan(params_, limits_of(options)), statistics_, schedule_.buffers(), backend),
      usage_(schedule_.shards(), params_.size() + statistics_.size()),
      final_(params_.size()) {
  for (const Param* const param : params_) item_of_.emplace(param, item_of_.size());
  for (const Statistic* const statistic : statistics_) item_of_.emplace(statistic, item_of_.size());
  arrival_.reserve(params_.size());
  fit_plan();
}

/// Calls the transport, or a hook that uses it. After an exception no further call is expected to return.
template <class Call>
void Reducer::guarded(const Call& call) {
  try {
    call();
  } catch (...) {
    state_ = State::broken;
    throw;
  }
}

void Reducer::fit_plan() {
  states_.resize(static_cast<std::size_t>(buffer_.buckets()));
  if (bucket_partition_ && !options_.hook) slices_ = bucket_partition_->slices(buffer_.plan());
  if (options_.hook) guarded([&] { options_.hook->bind(*this); });
  if (planes_) planes_->fit(buffer_);
}

void Reducer::set_shards_at_once(int shards) {
  schedule_ = AccumulationSchedule(map_.shards(), map_.block(transport_.group().rank()), shards);
  const int largest = schedule_.largest_group();
  if (largest > 1 && !(planes_ && planes_->shards() == largest))
    planes_.emplace(buffer_, statistics_, largest, backend_);
}

void Reducer::begin_step(std::uint64_t step) {
  withdraw();
  if (state_ == State::broken) throw FailureError("the gradients' transport has failed in an earlier step");
  state_ = State::collecting;
  since_start_.restart();
  usage_.clear();
  std::ranges::fill(states_, BucketState{});
  started_ = done_ = 0;
  times_.assign(states_.size(), {});
  arrival_.clear();
  if (options_.hook) options_.hook->begin_step(step);
  if (schedule_.groups().empty()) complete_all();  // no shard: nothing to wait for
}

void Reducer::begin_group(int group, int passes) {
  group_ = group;
  passes_left_ = passes;
  std::ranges::fill(final_, false);
  for (int bucket = 0; bucket < buffer_.gradient_buckets(); ++bucket)
    state_of(bucket).open =
        static_cast<int>(buffer_.plan().buckets()[static_cast<std::size_t>(bucket)].gradients.size());
}

void Reducer::begin_backward(std::span<Param* const> used) {
  if (!in_last_pass()) return;
  std::ranges::fill(final_, true);
  for (const Param* const param : used) final_[item_of(param, param->name)] = false;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (final_[i]) finish_gradient(i);
  }
}

void Reducer::end_pass() {
  if (in_last_pass()) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (!final_[i]) finish_gradient(i);
    }
    for (std::size_t item = params_.size(); item < usage_.items(); ++item) {
      if (!usage_.test(group().first, item)) backend_.fill(statistic_at(item), 0);
    }
    if (!statistics_.empty()) finish_bucket(buffer_.gradient_buckets());
  }
  --passes_left_;
}

void Reducer::abandon() {
  state_ = State::failed;
  complete_all();
}

void Reducer::launched(const Usage& usage) {
  usage_ = usage;
  comm::Work graph = 0;
  if (transport_.group().size() > 1) guarded([&] { graph = transport_.after_graphs(); });
  for (BucketState& bucket : states_) bucket.work = graph;
  const double now_ms = since_start_.elapsed_ms();
  times_.assign(states_.size(), {.ready_ms = now_ms, .start_ms = now_ms, .done_ms = 0});
  started_ = buffer_.buckets();
  done_ = 0;
  state_ = State::waiting;
}

void Reducer::order_after() {
  start_complete();
  guarded([&] {
    if (options_.hook) options_.hook->finish();
    if (state_ == State::collecting) state_ = State::waiting;
    for (int bucket = done_; bucket < started_; ++bucket) {
      progress::at_bucket(bucket);
      if (const comm::Work work = state_of(bucket).work; work != 0) transport_.order_after(work);
      note_done();
    }
  });
}

void Reducer::publish() {
  for (std::size_t i = 0; i < params_.size(); ++i) params_[i]->gradient = sum(static_cast<int>(i));
}

void Reducer::finish() {
  guarded([&] {
    for (int bucket = 0; bucket < started_; ++bucket) {
      const comm::Work work = state_of(bucket).work;
      if (work == 0) continue;
      progress::at_bucket(bucket);
      comm::finish(transport_, work);
    }
    note_done();
  });
}

void Reducer::agree(const StepHeader& header) {
  state_ = State::agreed;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!header.written(i)) params_[i]->gradient = {};
  }
  for (std::size_t i = 0; i < statistics_.size(); ++i) {
    if (header.written(params_.size() + i))
      statistics_[i]->apply(backend_, buffer_.statistic(static_cast<int>(i), 0));
  }
}

void Reducer::withdraw() {
  for (Param* const param : params_) param->gradient = {};
}

GradientView Reducer::gradient_view(Param& param) {
  const std::size_t index = open_item_of(param);
  return view_of(index, gradient_at(index));
}

GradientView Reducer::gradient_view(Statistic& statistic) {
  const std::size_t item = item_of(&statistic, statistic.name());
  return view_of(item, statistic_at(item));
}

GradientView Reducer::view_of(std::size_t item, Tensor memory) {
  const bool accumulate = usage_.test(group().first, item);
  for (int i = 0; i < group().count; ++i) usage_.set(group().first + i, item);
  return {std::move(memory), accumulate};
}

void Reducer::ready(Param& param) {
  if (!in_last_pass()) return;
  const std::size_t index = open_item_of(param);
  if (in_last_group()) arrival_.push_back(static_cast<std::int32_t>(index));
  finish_gradient(index);
}

/// Where the current group's gradient goes.
Tensor Reducer::gradient_at(std::size_t param) const {
  const auto index = static_cast<int>(param);
  return group().count == 1 ? buffer_.gradient(index, group().buffer)
                            : planes_->gradient(buffer_, index, group().count);
}

Tensor Reducer::statistic_at(std::size_t item) const {
  const auto index = static_cast<int>(item - params_.size());
  return group().count == 1 ? buffer_.statistic(index, group().buffer)
                            : planes_->statistic(index, group().count);
}

void Reducer::progress() {
  if (done_ < started_) guarded([&] { note_done(); });
}

void Reducer::note_done() {
  if (state_ == State::capturing) return;
  for (; done_ < started_; ++done_) {
    const comm::Work work = state_of(done_).work;
    if (has_hook(done_) && state_ != State::waiting)
      return transport_.progress();  // until the hook has finished
    if (!has_hook(done_) && work != 0 && !transport_.done(work)) return;
    times_[static_cast<std::size_t>(done_)].done_ms = since_start_.elapsed_ms();
  }
}

void Reducer::replan() {
  for (const int index : buffer_.plan().order()) {
    if (std::ranges::find(arrival_, index) == arrival_.end()) arrival_.push_back(index);
  }
  guarded([&] { transport_.group().broadcast(arrival_.data(), arrival_.size() * sizeof(arrival_[0]), 0); });
  const auto gradients = buffer_.plan().gradients();
  buffer_.adopt(BucketPlan({gradients.begin(), gradients.end()}, arrival_, limits_of(options_)));
  fit_plan();
  publish();  // the sums have new addresses
}

std::size_t Reducer::item_of(const void* leaf, const std::string& name) const {
  if (const auto found = item_of_.find(leaf); found != item_of_.end()) return found->second;
  throw UsageError(
      "{} was not in the model, or not trainable, when DataParallel was constructed; construct it after the "
      "model is "
      "complete",
      name);
}

std::size_t Reducer::open_item_of(const Param& param) const {
  const std::size_t item = item_of(&param, param.name);
  if (!final_[item]) return item;
  throw UsageError(
      "parameter {} is used after its gradient of this pass was complete; run the whole forward pass before "
      "its backward",
      param.name);
}

void Reducer::finish_gradient(std::size_t param) {
  if (!usage_.test(group().first, param)) backend_.fill(gradient_at(param), 0);
  final_[param] = true;
  progress::tick();
  const int bucket = buffer_.plan().location(static_cast<int>(param)).bucket;
  if (--state_of(bucket).open == 0) finish_bucket(bucket);
}

void Reducer::finish_bucket(int bucket) {
  const auto& [first, count, last, folds] = group();
  if (count > 1) planes_->add(bucket, count, buffer_.bucket(bucket, last));
  for (int buffer = last; buffer > last - folds; --buffer)
    backend_.run(ops::Accumulate{buffer_.bucket(bucket, buffer - 1), buffer_.bucket(bucket, buffer)});
  if (!in_last_group()) return;
  state_of(bucket).complete = true;
  times_[static_cast<std::size_t>(bucket)].ready_ms = since_start_.elapsed_ms();
  if (options_.mode == Mode::overlapped) start_complete();
}

void Reducer::complete_all() {
  for (BucketState& bucket : states_) bucket.complete = true;
  if (options_.mode == Mode::overlapped) start_complete();
}

void Reducer::start_complete() {
  if (holds_) return;
  for (; started_ < buffer_.buckets() && state_of(started_).complete; ++started_) start(started_);
}

void Reducer::start(int bucket) {
  times_[static_cast<std::size_t>(bucket)].start_ms = since_start_.elapsed_ms();
  progress::at_bucket(bucket);
  guarded([&] {
    if (has_hook(bucket)) return options_.hook->start(bucket);
    const comm::Work work = start_sum(bucket);
    if (options_.mode == Mode::per_parameter && work != 0) transport_.order_after(work);
  });
}

/// Waits for a hook's sums like for others.
comm::Work Reducer::start_sum(int bucket) {
  comm::TreeSum sum = buffer_.tree_sum(bucket);
  if (sum.count == 0) return 0;
  sum.comm_dtype = options_.comm_dtype;
  const auto index = static_cast<std::size_t>(bucket);
  return state_of(bucket).work = index < slices_.size()
                                     ? transport_.start_reduce_scatter(sum, map_, slices_[index])
                                     : transport_.start_tree_sum(sum, map_);
}

}  // namespace lockstep::ddp
