// lockstep bench overlap: how much communication the backward pass hides, compared with the optimum.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/bench.h"

namespace lockstep::cli {
namespace {

using train::Figures;
using train::StandardWorkload;
using train::WorkloadRun;

/// The times of one bucket in ms: medians of the slowest rank. The last bucket may be batch norm statistics.
struct BucketFigures {
  std::size_t bytes = 0;
  double ready_ms = 0;  ///< its gradients are complete, after the start of a step without communication
  double wire_ms = 0;   ///< duration of its sum without other load
  double start_ms = 0;  ///< its sum starts, after the start of a step of all ranks
  double done_ms = 0;   ///< its sum is complete
};

/// The times of one ddp.mode: medians over steps of the slowest rank.
struct OverlapTimes {
  std::string mode;  ///< per_parameter, flat or overlapped; with several bucket sizes, "overlapped 4 MiB"
  double step_ms = 0;
  double compute_ms = 0;  ///< the same steps without communication, on all ranks at the same time
  double comm_ms = 0;     ///< all sums at once, without a backward pass
  /// The maximum of the end of backward and, over buckets, of ready_ms + wire_ms of this and all later ones;
  /// plus header_ms and optimizer_ms.
  double critical_path_ms = 0;
  double exposed_comm_ms = 0;  ///< from the end of backward until all sums and the header are complete
  double header_ms = 0;        ///< the all-gather at the end of every step, without other load
  double optimizer_ms = 0;     ///< from the end of backward to the end of a step without communication
  std::vector<BucketFigures> buckets = {};
};

constexpr double max_bucket_mb = 1e6;        // like ddp.bucket_mb
constexpr std::int64_t steps_per_round = 4;  // of one mode before the next

std::string of_bucket(const char* what, std::size_t bucket) { return fmt::format("{} {}", what, bucket); }

/// The communication of a step without its computation: sums and header.
class Communication {
 public:
  Communication(comm::GradientTransport& transport, comm::FlatBuffer& flat_buffer,
                const ddp::DataParallel& replicas)
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

  /// Adds this rank's times for each sum, for all sums at once, and for the header.
  void measure(Figures& figures) {
    for (std::size_t b = 0; b < sums_.size(); ++b)
      figures.time(world_, of_bucket("wire", b),
                   [&] { transport_.order_after(transport_.start_tree_sum(sums_[b], map_)); });
    figures.time(world_, "comm", [&] {
      comm::Work last = 0;
      for (const comm::TreeSum& sum : sums_) last = transport_.start_tree_sum(sum, map_);
      transport_.order_after(last);
    });
    figures.time(world_, "header", [&] {
      world_.all_gather(header_.data(), header_.size() * sizeof(double), headers_.data());
    });
  }

 private:
  comm::GradientTransport& transport_;
  comm::HostGroup& world_;
  comm::ShardMap map_;
  std::vector<comm::TreeSum> sums_;
  std::vector<double> header_, headers_;
};

/// A mode of communication: steps of all ranks together, of every rank alone, and communication alone.
class ModeBenchmark {
 public:
  ModeBenchmark(std::string name, const StandardWorkload& workload, Session& session,
                const ddp::Options& options)
      : name_(std::move(name)),
        transport_(session.transport()),
        world_(session.world()),
        self_(comm::make_self_communicator()),
        together_(workload, transport_, session.backend(), options),
        alone_(workload, *self_, session.backend(), options) {}

  void warm_up() {
    for (std::int64_t step = 0; step < train::warm_up_steps; ++step) together_.step();
    for (std::int64_t step = 0; step < train::warm_up_steps; ++step) alone_.step();
    if (together_.replicas().plan().hash() != alone_.replicas().plan().hash())
      throw TrainingError(
          "bench overlap: gradients of rank {} arrive in a different order from those of rank 0",
          world_.rank());
  }
  void allocate(comm::FlatBuffer& flat_buffer) {
    communication_ = std::make_unique<Communication>(transport_, flat_buffer, together_.replicas());
  }
  const ddp::DataParallel& replicas() const { return together_.replicas(); }

  /// Measures `steps` steps with and without communication, after one step each to warm the caches.
  void run_round(std::int64_t steps);
  OverlapTimes result();

 private:
  std::string name_;
  comm::GradientTransport& transport_;
  comm::HostGroup& world_;
  std::unique_ptr<comm::CpuCommunicator> self_;
  WorkloadRun together_, alone_;
  std::unique_ptr<Communication> communication_;
  Figures figures_;
};

void ModeBenchmark::run_round(std::int64_t steps) {
  world_.barrier();
  for (std::int64_t step = -1; step < steps; ++step) {
    const WorkloadRun::Times times = together_.step();
    if (step < 0) continue;
    figures_.add("step", times.step_ms);
    figures_.add("exposed", times.exposed_comm_ms);
    const auto& buckets = together_.replicas().bucket_times();
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      figures_.add(of_bucket("start", b), buckets[b].start_ms);
      figures_.add(of_bucket("done", b), buckets[b].done_ms);
    }
  }
  world_.barrier();
  for (std::int64_t step = -1; step < steps; ++step) {
    const WorkloadRun::Times times = alone_.step();
    if (step < 0) continue;
    figures_.add("compute", times.step_ms);
    figures_.add("backward", times.backward_ms);
    const auto& buckets = alone_.replicas().bucket_times();
    for (std::size_t b = 0; b < buckets.size(); ++b) figures_.add(of_bucket("ready", b), buckets[b].ready_ms);
  }
  communication_->measure(figures_);
}

OverlapTimes ModeBenchmark::result() {
  figures_.take_max(world_);
  OverlapTimes times{.mode = name_,
                     .step_ms = figures_.median("step"),
                     .compute_ms = figures_.median("compute"),
                     .comm_ms = figures_.median("comm"),
                     .exposed_comm_ms = figures_.median("exposed"),
                     .header_ms = figures_.median("header")};
  const std::vector<comm::TreeSum>& sums = communication_->sums();
  for (std::size_t b = 0; b < sums.size(); ++b) {
    times.buckets.push_back({.bytes = static_cast<std::size_t>(sums[b].count) * bytes_of(sums[b].dtype),
                             .ready_ms = figures_.median(of_bucket("ready", b)),
                             .wire_ms = figures_.median(of_bucket("wire", b)),
                             .start_ms = figures_.median(of_bucket("start", b)),
                             .done_ms = figures_.median(of_bucket("done", b))});
  }
  std::vector<double> critical_ms, optimizer_ms;
  for (std::size_t step = 0; step < figures_["compute"].size(); ++step) {
    const double backward_ms = figures_["backward"][step];
    double sums_end_ms = backward_ms, wire_ms = 0;
    for (std::size_t b = sums.size(); b-- > 0;) {
      wire_ms += times.buckets[b].wire_ms;
      sums_end_ms = std::max(sums_end_ms, figures_[of_bucket("ready", b)][step] + wire_ms);
    }
    optimizer_ms.push_back(figures_["compute"][step] - backward_ms);
    critical_ms.push_back(sums_end_ms + times.header_ms + optimizer_ms.back());
  }
  times.critical_path_ms = median(std::move(critical_ms));
  times.optimizer_ms = median(std::move(optimizer_ms));
  return times;
}

/// Measures all modes in alternating rounds. `bucket_sizes_mb`: values of ddp.bucket_mb for mode overlapped,
/// with one result each; empty: its default. Collective.
std::vector<OverlapTimes> time_overlap(Session& session, const std::string& name, std::int64_t steps,
                                       const std::vector<double>& bucket_sizes_mb) {
  train::check_steps(steps, "overlap");
  for (const double bucket_mb : bucket_sizes_mb) {
    if (!(bucket_mb > 0 && bucket_mb <= max_bucket_mb))
      throw UsageError("--bucket-mb {}: must be above 0 and at most {}", bucket_mb, max_bucket_mb);
  }
  const StandardWorkload& workload = train::workload_named(name);
  std::vector<std::unique_ptr<ModeBenchmark>> modes;
  const auto enter = [&](std::string mode_name, const ddp::Options& ddp_options) {
    modes.push_back(std::make_unique<ModeBenchmark>(std::move(mode_name), workload, session, ddp_options));
    modes.back()->warm_up();
  };
  enter("per_parameter", {.mode = ddp::Mode::per_parameter});
  enter("flat", {.mode = ddp::Mode::flat});
  if (bucket_sizes_mb.empty()) enter("overlapped", {});
  for (const double bucket_mb : bucket_sizes_mb) {
    enter(bucket_sizes_mb.size() == 1 ? "overlapped" : fmt::format("overlapped {} MiB", bucket_mb),
          {.bucket_mb = bucket_mb});
  }

  // Plans differ in layout, not in size, so all modes share one flat buffer.
  const ddp::DataParallel& any = modes.front()->replicas();
  const auto flat_buffer =
      session.transport().allocate_buffer(any.accumulation_buffer_bytes(), any.accumulation_buffers());
  for (const auto& mode : modes) mode->allocate(*flat_buffer);
  for (std::int64_t left = steps; left > 0; left -= steps_per_round) {
    for (const auto& mode : modes) mode->run_round(std::min(left, steps_per_round));
  }
  std::vector<OverlapTimes> results;
  for (const auto& mode : modes) results.push_back(mode->result());
  return results;
}

void print_buckets(const OverlapTimes& times) {
  fmt::print("\n{}: header {:.2f} ms, optimizer {:.1f} ms\n", times.mode, times.header_ms,
             times.optimizer_ms);
  fmt::print("{:>8}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "bucket", "MiB", "ready", "wire", "started", "done");
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    const BucketFigures& bucket = times.buckets[b];
    fmt::print("{:>8}{:>10.3f}{:>12.2f}{:>12.2f}{:>12.2f}{:>12.2f}\n", b,
               static_cast<double>(bucket.bytes) / bytes_per_mib, bucket.ready_ms, bucket.wire_ms,
               bucket.start_ms, bucket.done_ms);
  }
}

/// The buckets of a step as bars: ready, started and done.
nlohmann::json buckets_of(const OverlapTimes& times) {
  nlohmann::json rows{"compute"}, spans = nlohmann::json::array();
  const auto add = [&](const char* kind, const char* name, double start, double end) {
    if (end > start)
      spans.push_back({{"row", rows.size() - 1},
                       {"kind", kind},
                       {"name", name},
                       {"start", start},
                       {"length", end - start}});
  };
  add("", "forward and backward", 0, times.compute_ms - times.optimizer_ms);
  add("other", "optimizer", times.step_ms - times.optimizer_ms, times.step_ms);
  for (std::size_t b = 0; b < times.buckets.size(); ++b) {
    const BucketFigures& bucket = times.buckets[b];
    rows.push_back(fmt::format("bucket {} · {}", b, report::bytes_text(static_cast<double>(bucket.bytes))));
    add("late", "gradients are ready, the sum waits", bucket.ready_ms, bucket.start_ms);
    add("comm", "sum", bucket.start_ms, bucket.done_ms);
  }
  return {{"bars",
           {{"title", "One step in mode " + times.mode},
            {"unit", "medians of the slowest rank"},
            {"axis", "ms since the start of the step"},
            {"key", true},
            {"rows", std::move(rows)},
            {"spans", std::move(spans)},
            {"note", "Computation and ready times are those of steps without communication."}}}};
}

void print_text(const std::vector<OverlapTimes>& results, const std::string& title, bool buckets) {
  fmt::print("{}, ms\n", title);
  fmt::print("{:<18}{:>10}{:>10}{:>10}{:>15}{:>10}{:>15}{:>13}\n", "mode", "step", "compute", "comm",
             "critical path", "exposed", "step/critical", "step/compute");
  for (const OverlapTimes& times : results) {
    fmt::print("{:<18}{:>10.1f}{:>10.1f}{:>10.1f}{:>15.1f}{:>10.1f}{:>15.3f}{:>13.3f}\n", times.mode,
               times.step_ms, times.compute_ms, times.comm_ms, times.critical_path_ms, times.exposed_comm_ms,
               times.step_ms / times.critical_path_ms, times.step_ms / times.compute_ms);
  }
  for (const OverlapTimes& times : results) {
    if (buckets && times.mode.starts_with("overlapped")) print_buckets(times);
  }
}

nlohmann::json json_of(const std::vector<OverlapTimes>& results) {
  nlohmann::json rows = nlohmann::json::array();
  for (const OverlapTimes& times : results) {
    rows.push_back({{"mode", times.mode},
                    {"step_ms", times.step_ms},
                    {"compute_ms", times.compute_ms},
                    {"comm_ms", times.comm_ms},
                    {"critical_path_ms", times.critical_path_ms},
                    {"exposed_comm_ms", times.exposed_comm_ms}});
  }
  return {{"rows", rows}};
}

}  // namespace

ExitCode bench_overlap(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench overlap [--workload NAME] [--bucket-mb X ...] [OPTIONS]",
                    "Times steps with each value of ddp.mode in alternation, and compares them with\n"
                    "steps without communication (compute), communication without computation (comm)\n"
                    "and the optimum (critical path): header and optimizer after the end of backward\n"
                    "or, if later, after the last sum, where each bucket's sum starts when the bucket\n"
                    "is ready and earlier sums are complete. Times in ms are medians of the slowest\n"
                    "rank.\nWorkloads: " +
                        workload_names() + ".");
  add_workload(options);
  options.add()("bucket-mb", po::value<std::vector<double>>()->multitoken(),
                "values of ddp.bucket_mb for mode overlapped, one row each");
  options.add()("buckets", "also print when each bucket of mode overlapped is ready, started and done");
  add_output(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const bool buckets = values.count("buckets") > 0;
  if (values.count("json") > 0 && buckets)
    throw UsageError("bench overlap: --buckets has no JSON form; omit --buckets or --json");

  const ResultOutput output(values, session);
  std::vector<double> bucket_sizes_mb;
  if (values.count("bucket-mb")) bucket_sizes_mb = values["bucket-mb"].as<std::vector<double>>();
  const std::string workload = values["workload"].as<std::string>();
  const std::vector<OverlapTimes> results =
      time_overlap(session, workload, values["steps"].as<std::int64_t>(), bucket_sizes_mb);
  std::vector<nlohmann::json> timelines;
  for (const OverlapTimes& times : results)
    if (times.mode.starts_with("overlapped")) timelines.push_back(buckets_of(times));
  const OverlapTimes& last = results.back();
  show(
      output, session, json_of(results),
      [&] { print_text(results, workload + " on " + ranks_and_nodes(session.world()), buckets); },
      {"Overlap: " + workload,
       "How much communication the backward pass hides. Times are medians over steps of the slowest rank. "
       "Critical path: the shortest possible step with these computations and sums.",
       {{"step, " + last.mode, fmt::format("{:.1f} ms", last.step_ms)},
        {"step / critical path", fmt::format("{:.3f}", last.step_ms / last.critical_path_ms)}}},
      report::section("Buckets", timelines));
  return ExitCode::done;
}

}  // namespace lockstep::cli
