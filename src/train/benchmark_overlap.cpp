// How much of a step's communication shows, beside what would be possible: the three modes in alternation.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "train/benchmark_run.h"

namespace lockstep::train {
namespace {

constexpr double most_bucket_mb = 1e6;     // as of ddp.bucket_mb
constexpr std::int64_t steps_in_turn = 4;  // measured, before it is the next mode's turn

/// Figures of several steps: a row a step, the same columns in each.
class Rows {
 public:
  void add(double value) { values_.push_back(value); }
  /// Collective. From here on each figure is the greatest of all ranks.
  void meet(comm::HostGroup& world) { values_ = greatest_of_ranks(world, values_); }
  std::span<const double> row(std::int64_t step, std::int64_t steps) const {
    const std::size_t columns = values_.size() / static_cast<std::size_t>(steps);
    return std::span(values_).subspan(static_cast<std::size_t>(step) * columns, columns);
  }
  double median_of(std::size_t column, std::int64_t steps) const {
    std::vector<double> values;
    for (std::int64_t step = 0; step < steps; ++step) values.push_back(row(step, steps)[column]);
    return median(std::move(values));
  }

 private:
  std::vector<double> values_;
};

/// The buckets of a plan without any backward.
class Wires {
 public:
  Wires(comm::GradientTransport& transport, comm::FlatBuffer& flat_buffer, const ddp::DataParallel& replicas)
      : transport_(transport), world_(transport.group()), map_(replicas.shard_map()) {
    const ddp::BucketPlan& plan = replicas.plan();
    for (const ddp::BucketPlan::Bucket& bucket : plan.buckets()) {
      sums_.push_back({.flat_buffer = &flat_buffer,
                       .offset_bytes = bucket.offset_bytes,
                       .count = bucket.elements(),
                       .dtype = bucket.dtype});
    }
    const std::size_t statistics_bytes = flat_buffer.accumulator_bytes() - plan.bytes();
    if (statistics_bytes > 0) {
      sums_.push_back({.flat_buffer = &flat_buffer,
                       .offset_bytes = plan.bytes(),
                       .count = static_cast<std::int64_t>(statistics_bytes / sizeof(double)),
                       .dtype = DType::float64});
    }
    // A step header: step, plan hash, flags and loss, and two bits for every parameter and statistic.
    constexpr std::size_t fixed_words = 5;
    header_.resize(fixed_words + 2 * ((plan.gradients().size() + 63) / 64));
    headers_.resize(header_.size() * static_cast<std::size_t>(world_.size()));
  }

  const std::vector<comm::TreeSum>& sums() const { return sums_; }

  /// Each bucket by itself, all at once, and the header: this rank's times, from a barrier on.
  void measure(Rows& rows) {
    for (const comm::TreeSum& sum : sums_)
      rows.add(time([&] { transport_.order_after(transport_.start_tree_sum(sum, map_)); }));
    rows.add(time([&] {
      comm::Work last = 0;
      for (const comm::TreeSum& sum : sums_) last = transport_.start_tree_sum(sum, map_);
      transport_.order_after(last);
    }));
    rows.add(
        time([&] { world_.all_gather(header_.data(), header_.size() * sizeof(double), headers_.data()); }));
  }

 private:
  template <class Call>
  double time(const Call& call) {
    world_.barrier();
    const Stopwatch watch;
    call();
    return watch.elapsed_ms();
  }

  comm::GradientTransport& transport_;
  comm::HostGroup& world_;
  comm::ShardMap map_;
  std::vector<comm::TreeSum> sums_;
  std::vector<double> header_, headers_;
};

class Contestant {
 public:
  Contestant(std::string name, const StandardWorkload& workload, Session& session,
             const ddp::Options& options)
      : name_(std::move(name)),
        transport_(session.transport()),
        world_(session.world()),
        self_(comm::make_self_communicator()),
        together_(workload, transport_, session.backend(), options),
        alone_(workload, *self_, session.backend(), options) {}

  void settle() {
    for (std::int64_t step = 0; step < settling_steps; ++step) together_.step();
    for (std::int64_t step = 0; step < settling_steps; ++step) alone_.step();
    if (together_.replicas().plan().hash() != alone_.replicas().plan().hash())
      throw TrainingError("bench overlap: gradients of rank {} arrive in another order than those of rank 0",
                          world_.rank());
  }
  void allocate(comm::FlatBuffer& flat_buffer) {
    wires_ = std::make_unique<Wires>(transport_, flat_buffer, together_.replicas());
  }
  const ddp::DataParallel& replicas() const { return together_.replicas(); }

  /// `steps` measured steps of each kind, after one that finds its memory again.
  void take_turn(std::int64_t steps);
  OverlapTimes result();

 private:
  std::string name_;
  comm::GradientTransport& transport_;
  comm::HostGroup& world_;
  std::unique_ptr<comm::CpuCommunicator> self_;
  WorkloadRun together_, alone_;
  std::unique_ptr<Wires> wires_;
  std::int64_t steps_ = 0, turns_ = 0;
  Rows together_rows_;  // step, exposed; start of each bucket; done of each
  Rows alone_rows_;     // step, backward; ready of each bucket
  Rows wire_rows_;      // each bucket, all buckets, header; a row a turn
};

void Contestant::take_turn(std::int64_t steps) {
  world_.barrier();
  for (std::int64_t step = -1; step < steps; ++step) {
    const WorkloadRun::Times times = together_.step();
    if (step < 0) continue;
    together_rows_.add(times.step_ms);
    together_rows_.add(times.exposed_comm_ms);
    for (const ddp::BucketTime& bucket : together_.replicas().bucket_times())
      together_rows_.add(bucket.start_ms);
    for (const ddp::BucketTime& bucket : together_.replicas().bucket_times())
      together_rows_.add(bucket.done_ms);
  }
  world_.barrier();
  for (std::int64_t step = -1; step < steps; ++step) {
    const WorkloadRun::Times times = alone_.step();
    if (step < 0) continue;
    alone_rows_.add(times.step_ms);
    alone_rows_.add(times.backward_ms);
    for (const ddp::BucketTime& bucket : alone_.replicas().bucket_times()) alone_rows_.add(bucket.ready_ms);
  }
  wires_->measure(wire_rows_);
  steps_ += steps;
  ++turns_;
}

OverlapTimes Contestant::result() {
  for (Rows* const rows : {&together_rows_, &alone_rows_, &wire_rows_}) rows->meet(world_);
  const std::size_t buckets = wires_->sums().size();
  OverlapTimes times{.mode = name_};
  for (std::size_t b = 0; b < buckets; ++b) {
    const comm::TreeSum& sum = wires_->sums()[b];
    times.buckets.push_back({.bytes = static_cast<std::size_t>(sum.count) * bytes_of(sum.dtype),
                             .ready_ms = alone_rows_.median_of(2 + b, steps_),
                             .wire_ms = wire_rows_.median_of(b, turns_),
                             .start_ms = together_rows_.median_of(2 + b, steps_),
                             .done_ms = together_rows_.median_of(2 + buckets + b, steps_)});
  }
  times.step_ms = together_rows_.median_of(0, steps_);
  times.exposed_comm_ms = together_rows_.median_of(1, steps_);
  times.compute_ms = alone_rows_.median_of(0, steps_);
  times.comm_ms = wire_rows_.median_of(buckets, turns_);
  times.header_ms = wire_rows_.median_of(buckets + 1, turns_);

  std::vector<double> critical_ms, optimizer_ms;
  for (std::int64_t step = 0; step < steps_; ++step) {
    const std::span<const double> row = alone_rows_.row(step, steps_);
    const double step_ms = row[0], backward_ms = row[1];
    double sums_end_ms = backward_ms, wire_ms = 0;
    for (std::size_t b = buckets; b-- > 0;) {
      wire_ms += times.buckets[b].wire_ms;
      sums_end_ms = std::max(sums_end_ms, row[2 + b] + wire_ms);
    }
    optimizer_ms.push_back(step_ms - backward_ms);
    critical_ms.push_back(sums_end_ms + times.header_ms + optimizer_ms.back());
  }
  times.critical_path_ms = median(std::move(critical_ms));
  times.optimizer_ms = median(std::move(optimizer_ms));
  return times;
}

}  // namespace

std::vector<OverlapTimes> time_overlap(Session& session, const std::string& name,
                                       const OverlapOptions& options) {
  check_steps(options.steps, "overlap");
  for (const double bucket_mb : options.bucket_mb) {
    if (!(bucket_mb > 0 && bucket_mb <= most_bucket_mb))
      throw UsageError("--bucket-mb {}: must be in (0, {}]; see lockstep bench overlap --help", bucket_mb,
                       most_bucket_mb);
  }
  const StandardWorkload& workload = workload_named(name);
  std::vector<std::unique_ptr<Contestant>> contestants;
  const auto enter = [&](std::string mode_name, const ddp::Options& ddp_options) {
    contestants.push_back(std::make_unique<Contestant>(std::move(mode_name), workload, session, ddp_options));
    contestants.back()->settle();
  };
  enter("per_parameter", {.mode = ddp::Mode::per_parameter});
  enter("flat", {.mode = ddp::Mode::flat});
  if (options.bucket_mb.empty()) enter("overlapped", {});
  for (const double bucket_mb : options.bucket_mb) {
    enter(options.bucket_mb.size() == 1 ? "overlapped" : fmt::format("overlapped {} MiB", bucket_mb),
          {.bucket_mb = bucket_mb});
  }

  // The layout of an accumulator is a matter of the plan, its size is not: one flat buffer serves all.
  const ddp::DataParallel& any = contestants.front()->replicas();
  const auto flat_buffer =
      session.transport().allocate_buffer(any.accumulation_buffer_bytes(), any.accumulation_buffers());
  for (const auto& contestant : contestants) contestant->allocate(*flat_buffer);
  for (std::int64_t left = options.steps; left > 0; left -= steps_in_turn) {
    for (const auto& contestant : contestants) contestant->take_turn(std::min(left, steps_in_turn));
  }
  std::vector<OverlapTimes> results;
  for (const auto& contestant : contestants) results.push_back(contestant->result());
  return results;
}

}  // namespace lockstep::train
