#include "lockstep/ddp/power_sgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

using kernels::Orthonormal;

constexpr std::size_t alignment = BucketPlan::alignment_bytes;

std::size_t padded_bytes(std::int64_t elements) {
  return (static_cast<std::size_t>(elements) * sizeof(float) + alignment - 1) / alignment * alignment;
}

void check_options(const PowerSgdOptions& options) {
  if (options.rank < 1) throw UsageError("powersgd: rank = {} must be at least 1", options.rank);
  if (!(options.min_compression > 0) || !std::isfinite(options.min_compression))
    throw UsageError("powersgd: min_compression = {} must be above 0", options.min_compression);
  if (options.start_step < 0)
    throw UsageError("powersgd: start_step = {} must not be negative", options.start_step);
  if (options.start_step < 2 && (options.error_feedback || options.warm_start))
    throw UsageError(
        "powersgd: start_step = {} must be at least 2 with error_feedback or warm_start: the first gradients "
        "of fresh weights are unlike any later ones, and would be remembered",
        options.start_step);
}

}  // namespace

PowerSgd::PowerSgd(const PowerSgdOptions& options) : options_(options) { check_options(options); }

PowerSgd::~PowerSgd() = default;

std::string PowerSgd::describe() const {
  return fmt::format(
      "powersgd rank={} start_step={} min_compression={} error_feedback={} warm_start={}, seed {}",
      options_.rank, options_.start_step, options_.min_compression, options_.error_feedback,
      options_.warm_start, options_.seed);
}

std::string PowerSgd::summary() const {
  double plain = 0, sent = 0;
  for (const Item& item : items_) {
    plain += static_cast<double>(item.n * item.m);
    sent += static_cast<double>(item.compressed() ? (item.n + item.m) * item.rank : item.n * item.m);
  }
  const double mib = sizeof(float) / static_cast<double>(1 << 20);
  return fmt::format(
      "{} of {} gradients travel as factors of rank {} from step {} on: {:.2f} MiB a step become {:.2f} MiB",
      compressed_items_, items_.size(), options_.rank, options_.start_step, plain * mib, sent * mib);
}

// --- memory

void PowerSgd::bind(Buckets& buckets) {
  if (buckets_ && buckets_ != &buckets)
    throw UsageError("a PowerSgd hook belongs to one DataParallel; make another for the second");
  buckets_ = &buckets;
  const int ranks = buckets.communicator().size();
  ranks_ = comm::ShardMap(ranks, ranks);
  if (!valid_) valid_ = buckets.backend().empty({1});
  remember(buckets.plan());
  lay_out(buckets.plan());
  tickets_.assign(buckets.plan().buckets().size(), 0);
}

void PowerSgd::remember(const BucketPlan& plan) {
  items_.clear();
  compressed_items_ = 0;
  kernels::Backend& backend = buckets_->backend();
  for (const BucketPlan::Gradient& gradient : plan.gradients()) {
    Item& item = items_.emplace_back();
    const std::int64_t elements = gradient.shape.numel();
    item.n = gradient.shape.rank() == 0 ? 1 : gradient.shape[0];
    item.m = item.n == 0 ? 0 : elements / item.n;
    const double sent = static_cast<double>(item.n + item.m) * options_.rank;
    if (!(sent * options_.min_compression < static_cast<double>(elements))) continue;
    ++compressed_items_;
    item.rank = std::min({std::int64_t{options_.rank}, item.n, item.m});
    item.random = purpose_of("powersgd:" + gradient.name);
    Memory& memory = memory_[gradient.name];
    item.memory = memory;
    if (options_.error_feedback && !memory.error) {
      item.memory.error = backend.empty({item.n, item.m});
      backend.fill(item.memory.error, 0);
    }
    if (!memory.q) {
      item.memory.q = backend.empty({item.rank, item.m});
      draw(item);
    }
    memory = item.memory;
  }
}

/// First what travels during backward, bucket by bucket, then what travels after it. Each part is padded, so
/// that all of it has one size under every plan.
void PowerSgd::lay_out(const BucketPlan& plan) {
  const std::size_t buckets = plan.buckets().size();
  firsts_.assign(buckets, {});
  seconds_.assign(buckets, {});
  std::size_t end = 0;
  const auto place = [&end](std::int64_t elements) {
    return std::exchange(end, end + padded_bytes(elements));
  };
  for (std::size_t b = 0; b < buckets; ++b) {
    firsts_[b].offset = end;
    for (const int gradient : plan.buckets()[b].gradients) {
      Item& item = items_[static_cast<std::size_t>(gradient)];
      item.first_offset = place(item.n * (item.compressed() ? item.rank : item.m));
    }
    firsts_[b].bytes = end - firsts_[b].offset;
  }
  bool any = false;
  for (std::size_t b = 0; b < buckets; ++b) {
    seconds_[b].offset = end;
    for (const int gradient : plan.buckets()[b].gradients) {
      Item& item = items_[static_cast<std::size_t>(gradient)];
      if (!item.compressed()) continue;
      if (!std::exchange(any, true)) failures_offset_ = place(1);
      item.second_offset = place(item.rank * item.m);
    }
    seconds_[b].bytes = end - seconds_[b].offset;
  }
  if (!any) return;
  if (arena_) {
    buckets_->backend().fill(at(0, {static_cast<std::int64_t>(end / sizeof(float))}), 0);  // padding, too
  } else {
    arena_ = buckets_->communicator().allocate_arena(end, 1);
  }
}

RandomKey PowerSgd::key_of(const Item& item) const {
  return {.seed = options_.seed, .purpose = item.random, .step = step_};
}

void PowerSgd::draw(const Item& item) const {
  kernels::Backend& backend = buckets_->backend();
  const Tensor& q = item.memory.q;
  for (std::int64_t row = 0; row < q.size(0); ++row) {  // as orthonormalise draws those it has to replace
    RandomKey key = key_of(item);
    key.shard = static_cast<std::uint32_t>(row);
    backend.draw_normal(key, q.rows(row, row + 1));
  }
  backend.orthonormalise(q, {.vectors = Orthonormal::Vectors::rows, .draw = key_of(item)}, q);
}

std::vector<HookState> PowerSgd::state() {
  if (!remembers_ || compressed_items_ == 0) return {};
  HookState q{.name = "powersgd/q", .by_rank = false, .entries = {}};
  HookState error{.name = "powersgd/error", .by_rank = true, .entries = {}};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].compressed()) continue;
    const std::string& name = buckets_->plan().gradients()[i].name;
    q.entries.push_back({name, items_[i].memory.q});
    error.entries.push_back({name, items_[i].memory.error});
  }
  std::vector<HookState> states;
  if (options_.warm_start) states.push_back(std::move(q));
  if (options_.error_feedback) states.push_back(std::move(error));
  return states;
}

std::vector<HookState> PowerSgd::state_to_load() {
  remembers_ = true;
  return state();
}

// --- a step

void PowerSgd::begin_step(std::uint64_t step) {
  step_ = step;
  compresses_ = compressed_items_ > 0 && step >= static_cast<std::uint64_t>(options_.start_step);
}

void PowerSgd::start(int bucket) {
  comm::Ticket& ticket = tickets_[static_cast<std::size_t>(bucket)];
  if (!compresses_) {
    ticket = buckets_->start_sum(bucket);
    return;
  }
  fold(bucket);
  compress(bucket);
  ticket = start_sum(firsts_[static_cast<std::size_t>(bucket)]);
}

void PowerSgd::finish() {
  const int buckets = static_cast<int>(tickets_.size());
  if (compresses_) buckets_->backend().fill(failures(), buckets_->failed() ? 1 : 0);
  for (int bucket = 0; bucket < buckets; ++bucket) {
    comm::Ticket& ticket = tickets_[static_cast<std::size_t>(bucket)];
    wait(ticket);
    if (!compresses_) continue;
    project(bucket);
    ticket = start_sum(seconds_[static_cast<std::size_t>(bucket)]);
  }
  if (!compresses_) return;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    if (seconds_[static_cast<std::size_t>(bucket)].bytes == 0) continue;
    wait(tickets_[static_cast<std::size_t>(bucket)]);
    expand(bucket);
  }
  remembers_ = true;
}

/// The partial sums of this rank's shards become one, in plane 0.
void PowerSgd::fold(int bucket) const {
  kernels::Backend& backend = buckets_->backend();
  const Tensor whole = buckets_->bucket(bucket, 0);
  if (buckets_->partial_sums() == 0) backend.fill(whole, 0);
  for (int plane = 1; plane < buckets_->partial_sums(); ++plane)
    backend.accumulate(whole, buckets_->bucket(bucket, plane));
}

/// M of this rank, in plane 0, and P of it.
void PowerSgd::compress(int bucket) {
  kernels::Backend& backend = buckets_->backend();
  for (const int gradient : gradients_of(bucket)) {
    const Item& item = item_of(gradient);
    const Tensor m = matrix(gradient);
    if (!item.compressed()) {
      backend.copy(m, at(item.first_offset, m.shape()));
      continue;
    }
    if (item.memory.error) backend.accumulate(m, item.memory.error);
    if (!options_.warm_start) draw(item);
    backend.linear(m, item.memory.q, {}, p_of(item));
  }
}

/// P is summed: Q' of this rank.
void PowerSgd::project(int bucket) {
  kernels::Backend& backend = buckets_->backend();
  for (const int gradient : gradients_of(bucket)) {
    const Item& item = item_of(gradient);
    if (!item.compressed()) {
      const Tensor sum = matrix(gradient);
      backend.copy(at(item.first_offset, sum.shape()), sum);
      continue;
    }
    const Tensor p = p_of(item);
    backend.orthonormalise(p, {.vectors = Orthonormal::Vectors::columns}, p);
    backend.linear_backward_weight(matrix(gradient), p, new_q_of(item), false);
    buckets_->communicator().progress();
  }
}

/// Q' is summed: what stands for the sum, and what it leaves out. Failures have come with the first of these
/// sums: what a failed rank sent must not be remembered, nor what is not finite.
void PowerSgd::expand(int bucket) {
  kernels::Backend& backend = buckets_->backend();
  const float share = 1 / static_cast<float>(ranks_.ranks());
  for (const int gradient : gradients_of(bucket)) {
    const Item& item = item_of(gradient);
    if (!item.compressed()) continue;
    const Tensor q = new_q_of(item);
    backend.expand({.p = p_of(item),
                    .q = q,
                    .failed = failures(),
                    .share = share,
                    .matrix = matrix(gradient),
                    .rest = item.memory.error,
                    .valid = valid_});
    if (options_.warm_start)
      backend.orthonormalise(
          q, {.vectors = Orthonormal::Vectors::rows, .draw = key_of(item), .condition = valid_},
          item.memory.q);
    buckets_->communicator().progress();
  }
}

comm::Ticket PowerSgd::start_sum(const Segment& segment) const {
  if (segment.bytes == 0) return 0;
  return buckets_->communicator().start_tree_sum(
      {.arena = arena_.get(),
       .offset_bytes = segment.offset,
       .count = static_cast<std::int64_t>(segment.bytes / sizeof(float)),
       .dtype = DType::float32,
       .wire = buckets_->wire()},
      ranks_);
}

void PowerSgd::wait(comm::Ticket ticket) const {
  if (ticket != 0) buckets_->communicator().wait(ticket);
}

const std::vector<int>& PowerSgd::gradients_of(int bucket) const {
  return buckets_->plan().buckets()[static_cast<std::size_t>(bucket)].gradients;
}

Tensor PowerSgd::matrix(int gradient) const {
  const Item& item = item_of(gradient);
  return buckets_->gradient(gradient, 0).reshape({item.n, item.m});
}

Tensor PowerSgd::at(std::size_t offset, Shape shape) const {
  return Tensor::view(arena_->plane(0) + offset, shape, DType::float32, buckets_->backend().device());
}

}  // namespace lockstep::ddp
