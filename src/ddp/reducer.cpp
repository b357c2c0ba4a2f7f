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

/// The plan before anything has run: backward usually meets parameters in reverse order of registration.
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
  switch (options.mode) {
    case Mode::flat:
      return {.first_bytes = all, .other_bytes = all};
    case Mode::per_parameter:
      return {.first_bytes = 1, .other_bytes = 1};
    case Mode::overlapped:
      break;
  }
  return {.first_bytes = bytes(options.first_bucket_mb), .other_bytes = bytes(options.bucket_mb)};
}

std::vector<std::int64_t> elements_of(std::span<Statistic* const> statistics) {
  std::vector<std::int64_t> elements;
  for (const Statistic* const statistic : statistics) elements.push_back(statistic->elements());
  return elements;
}

}  // namespace

Reducer::Reducer(std::vector<Param*> params, std::vector<Statistic*> statistics,
                 comm::GradientTransport& communicator, kernels::Backend& backend, const comm::ShardMap& map,
                 const Options& options, const BucketSlicer* slicer)
    : params_(std::move(params)),
      statistics_(std::move(statistics)),
      communicator_(communicator),
      backend_(backend),
      map_(map),
      schedule_(map.shards(), map.block(communicator.group().rank())),
      limits_(limits_of(options)),
      mode_(options.mode),
      wire_(options.wire),
      hook_(options.hook.get()),
      slicer_(slicer),
      arena_(communicator, first_plan(params_, limits_), elements_of(statistics_), schedule_.planes(),
             backend),
      usage_(static_cast<int>(schedule_.turns().size()), params_.size() + statistics_.size()),
      final_(params_.size()),
      used_(params_.size()) {
  for (std::size_t i = 0; i < params_.size(); ++i) index_of_param_.emplace(params_[i], i);
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < statistics_.size(); ++i) {
    index_of_statistic_.emplace(statistics_[i], i);
    largest = std::max(largest, statistics_[i]->elements());
  }
  second_contribution_ = backend_.empty({largest}, DType::float64);
  arrival_.reserve(params_.size());
  fit_plan();
}

void Reducer::fit_plan() {
  const auto buckets = static_cast<std::size_t>(arena_.buckets());
  open_.resize(static_cast<std::size_t>(arena_.gradient_buckets()));
  complete_.resize(buckets);
  tickets_.resize(buckets);
  if (slicer_) slices_ = slicer_->slices(arena_.plan());
  if (hook_) transport([&] { hook_->bind(*this); });
}

void Reducer::begin_step(std::uint64_t step) {
  since_start_.restart();
  usage_.clear();
  std::fill(complete_.begin(), complete_.end(), false);
  backward_over_ = finished_ = failed_ = false;
  next_ = done_ = 0;
  times_.assign(complete_.size(), {});
  arrival_.clear();
  if (hook_) hook_->begin_step(step);
  if (schedule_.turns().empty()) start_all();  // no shard, so nothing to wait for
}

void Reducer::begin_shard(int turn) {
  turn_ = turn;
  std::fill(final_.begin(), final_.end(), false);
  for (std::size_t b = 0; b < open_.size(); ++b)
    open_[b] = static_cast<int>(arena_.plan().buckets()[b].gradients.size());
}

void Reducer::begin_pass(bool last_piece) { last_piece_ = last_piece; }

void Reducer::begin_backward(std::span<Param* const> used) {
  if (!last_piece_) return;
  std::fill(used_.begin(), used_.end(), false);
  for (const Param* const param : used) used_[index_of(*param)] = true;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!used_[i]) finish_gradient(i);
  }
}

void Reducer::end_pass() {
  if (!last_piece_) return;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (!final_[i]) finish_gradient(i);
  }
  if (!statistics_.empty()) finish_statistics();
}

void Reducer::abandon() {
  failed_ = true;
  start_all();
}

void Reducer::start_all() {
  std::fill(complete_.begin(), complete_.end(), true);
  start_buckets();
}

void Reducer::wait() {
  backward_over_ = true;
  start_buckets();
  if (hook_) transport([&] { hook_->finish(); });
  finished_ = true;
  transport([&] {
    for (int bucket = done_; bucket < next_; ++bucket) {
      progress::at_bucket(bucket);
      if (const comm::Ticket ticket = tickets_[static_cast<std::size_t>(bucket)]; ticket != 0)
        communicator_.wait(ticket);
      note_done();
    }
  });
}

void Reducer::replayed(const Usage& usage) {
  usage_ = usage;
  comm::Ticket behind = 0;
  if (communicator_.group().size() > 1) transport([&] { behind = communicator_.behind_recording(); });
  std::fill(complete_.begin(), complete_.end(), true);
  std::fill(tickets_.begin(), tickets_.end(), behind);
  const double now_ms = since_start_.elapsed_ms();
  times_.assign(complete_.size(), {.ready_ms = now_ms, .start_ms = now_ms, .done_ms = 0});
  backward_over_ = finished_ = true;
  next_ = arena_.buckets();
  done_ = 0;
}

void Reducer::complete() {
  transport([&] {
    for (int bucket = 0; bucket < next_; ++bucket) {
      const comm::Ticket ticket = tickets_[static_cast<std::size_t>(bucket)];
      if (ticket == 0) continue;
      progress::at_bucket(bucket);
      comm::complete(communicator_, ticket);
    }
    note_done();
  });
}

GradientSlot Reducer::slot(Param& param) {
  const std::size_t index = index_of(param);
  if (final_[index])
    throw UsageError(
        "parameter {} is used after its gradient of this pass was complete; run the whole "
        "forward pass before its backward",
        param.name);
  const bool accumulate = usage_.test(turn_, index);
  usage_.set(turn_, index);
  return {arena_.gradient(static_cast<int>(index), turn().plane), accumulate};
}

void Reducer::ready(Param& param) {
  if (!last_piece_) return;
  const std::size_t index = index_of(param);
  if (final_[index])
    throw UsageError(
        "parameter {} got its gradient twice in one pass; run the whole forward pass before its "
        "backward",
        param.name);
  if (last_turn()) arrival_.push_back(static_cast<std::int32_t>(index));
  finish_gradient(index);
}

GradientSlot Reducer::slot(Statistic& statistic) {
  const std::size_t index = index_of(statistic);
  in_second_contribution_ = usage_.test(turn_, params_.size() + index);
  usage_.set(turn_, params_.size() + index);
  if (!in_second_contribution_) return {arena_.statistic(static_cast<int>(index), turn().plane), false};
  // A module that is called twice overwrites in both calls; the addition happens in contributed().
  return {second_contribution_.rows(0, statistic.elements()), false};
}

void Reducer::contributed(Statistic& statistic) {
  if (!in_second_contribution_) return;
  in_second_contribution_ = false;
  const Tensor total = arena_.statistic(static_cast<int>(index_of(statistic)), turn().plane);
  backend_.run(
      ops::Accumulate{total, second_contribution_.rows(0, statistic.elements()).reshape(total.shape())});
}

void Reducer::progress() {
  if (done_ < next_) transport([&] { note_done(); });
}

void Reducer::note_done() {
  if (recording_) return;
  for (; done_ < next_; ++done_) {
    const auto index = static_cast<std::size_t>(done_);
    const bool with_hook = hook_ && done_ < arena_.gradient_buckets();
    if (with_hook && !finished_) return communicator_.progress();
    if (!with_hook && tickets_[index] != 0 && !communicator_.done(tickets_[index])) return;
    times_[index].done_ms = since_start_.elapsed_ms();
  }
}

void Reducer::replan() {
  std::vector<char> arrived(params_.size());
  for (const std::int32_t index : arrival_) arrived[static_cast<std::size_t>(index)] = true;
  for (const int index : arena_.plan().order()) {
    if (!arrived[static_cast<std::size_t>(index)]) arrival_.push_back(index);
  }
  transport(
      [&] { communicator_.group().broadcast(arrival_.data(), arrival_.size() * sizeof(arrival_[0]), 0); });
  const auto gradients = arena_.plan().gradients();
  arena_.adopt(BucketPlan({gradients.begin(), gradients.end()}, arrival_, limits_));
  fit_plan();
}

std::size_t Reducer::index_of(const Param& param) const {
  const auto found = index_of_param_.find(&param);
  if (found == index_of_param_.end())
    throw UsageError(
        "parameter {} was not a trainable parameter of the model when DataParallel was made; "
        "make it after the model is complete",
        param.name);
  return found->second;
}

std::size_t Reducer::index_of(const Statistic& statistic) const {
  const auto found = index_of_statistic_.find(&statistic);
  if (found == index_of_statistic_.end())
    throw UsageError(
        "statistic {} was not part of the model when DataParallel was made; make it after the "
        "model is complete",
        statistic.name());
  return found->second;
}

void Reducer::finish_gradient(std::size_t param) {
  if (!usage_.test(turn_, param)) backend_.fill(arena_.gradient(static_cast<int>(param), turn().plane), 0);
  final_[param] = true;
  progress::mark();
  const int bucket = arena_.plan().place(static_cast<int>(param)).bucket;
  if (--open_[static_cast<std::size_t>(bucket)] == 0) finish_bucket(bucket);
}

void Reducer::finish_statistics() {
  for (std::size_t i = 0; i < statistics_.size(); ++i) {
    if (usage_.test(turn_, params_.size() + i)) continue;
    backend_.fill(arena_.statistic(static_cast<int>(i), turn().plane), 0);
  }
  finish_bucket(arena_.gradient_buckets());
}

void Reducer::finish_bucket(int bucket) {
  for (int plane = turn().plane; plane > turn().plane - turn().merges; --plane)
    backend_.run(ops::Accumulate{arena_.bucket(bucket, plane - 1), arena_.bucket(bucket, plane)});
  if (!last_turn()) return;
  complete_[static_cast<std::size_t>(bucket)] = true;
  times_[static_cast<std::size_t>(bucket)].ready_ms = since_start_.elapsed_ms();
  start_buckets();
}

void Reducer::start_buckets() {
  if (mode_ != Mode::overlapped && !backward_over_) return;
  for (; next_ < arena_.buckets() && complete_[static_cast<std::size_t>(next_)]; ++next_) start_bucket(next_);
}

void Reducer::start_bucket(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  times_[index].start_ms = since_start_.elapsed_ms();
  progress::at_bucket(bucket);
  tickets_[index] = 0;
  if (hook_ && bucket < arena_.gradient_buckets()) {
    transport([&] { hook_->start(bucket); });
    return;
  }
  tickets_[index] =
      slicer_ && bucket < arena_.gradient_buckets() ? start_own_sums(bucket) : start_sum(bucket);
  if (mode_ == Mode::per_parameter && tickets_[index] != 0)
    transport([&] { communicator_.wait(tickets_[index]); });
}

comm::Ticket Reducer::start_sum(int bucket) {
  comm::TreeSum sum = arena_.tree_sum(bucket);
  if (sum.count == 0) return 0;
  sum.comm_dtype = wire_;
  comm::Ticket ticket = 0;
  transport([&] { ticket = communicator_.start_tree_sum(sum, map_); });
  tickets_[static_cast<std::size_t>(bucket)] = ticket;  // a hook may have asked for it
  return ticket;
}

comm::Ticket Reducer::start_own_sums(int bucket) {
  comm::TreeSum sum = arena_.tree_sum(bucket);
  if (sum.count == 0) return 0;
  sum.comm_dtype = wire_;
  comm::Ticket ticket = 0;
  transport([&] {
    ticket = communicator_.start_reduce_scatter(sum, map_, slices_[static_cast<std::size_t>(bucket)]);
  });
  return ticket;
}

}  // namespace lockstep::ddp
