// What a step reports of itself: when each bucket moved, and how much communication backward did not hide.
//
// No case asserts how long something takes. Delays are made by waiting on the clock, so they last at least as
// long as asked; other bounds are readings of the same clock around what is measured.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <set>

#include "base/clock.h"
#include "ddp/training.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(times, *ranks(1, 2, 3, 4))

constexpr double delay_ms = 25;
constexpr double slack_ms = 1e-3;  // rounding of differences of readings

void wait_until(double moment_s) {
  while (monotonic_s() < moment_s) {
  }
}

/// Holds one sum of each step back: it, and what was started after it, is not done before it is released.
class Holding final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  enum class Release {
    at_once,   ///< nothing is held
    in_wait,   ///< a delay after somebody begins to wait for it
    when_due,  ///< a delay after it was started, whether anybody waits or not
  };
  Release release = Release::at_once;
  int held_sum = 0;  ///< counted from 0 in each step

  void begin_step() {
    sums_ = 0;
    held_ = 0;
    waited_ms = 0;
    spins = 0;
  }
  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    const comm::Work work = Forwarding::start_tree_sum(sum, map);
    if (sums_++ == held_sum && release != Release::at_once) {
      held_ = work;
      due_s = monotonic_s() + delay_ms * 1e-3;
    }
    return work;
  }
  bool done(comm::Work work) override {
    if (!holds(work)) return Forwarding::done(work);
    Forwarding::progress();
    return false;
  }
  void order_after(comm::Work work) override {
    if (!holds(work) && Forwarding::done(work)) return Forwarding::order_after(work);  // nobody waits here
    const Stopwatch watch;
    if (holds(work)) {
      ++spins;
      if (release == Release::in_wait) due_s = monotonic_s() + delay_ms * 1e-3;
      wait_until(due_s);
      held_ = 0;
    }
    Forwarding::order_after(work);
    waited_ms += watch.elapsed_ms();
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    const Stopwatch watch;
    Forwarding::all_gather(mine, bytes, all);
    waited_ms += watch.elapsed_ms();
  }

  double due_s = 0;
  double waited_ms = 0;  ///< in calls that return only when something is complete
  int spins = 0;         ///< times somebody had to wait for what was held

 private:
  bool holds(comm::Work work) {
    if (held_ == 0 || work < held_) return false;
    return release == Release::in_wait || monotonic_s() < due_s;
  }
  comm::Work held_ = 0;
  int sums_ = 0;
};

/// Plain sums, waited for at the end.
class PlainHook final : public ddp::Hook {
 public:
  std::string describe() const override { return "plain"; }
  void bind(ddp::Buckets& buckets) override {
    buckets_ = &buckets;
    works_.reserve(buckets.plan().buckets().size());
  }
  void begin_step(std::uint64_t) override { works_.clear(); }
  void start(int bucket) override { works_.push_back(buckets_->start_sum(bucket)); }
  void finish() override {
    for (const comm::Work work : works_) {
      if (work != 0) buckets_->transport().order_after(work);
    }
  }

 private:
  ddp::Buckets* buckets_ = nullptr;
  std::vector<comm::Work> works_;
};

struct Held {
  Holding communicator{world()};
  ToyStatistic statistic;
};

struct Run : Held, ToyRun {
  explicit Run(ddp::Mode mode = ddp::Mode::overlapped, ddp::Options options = {}, bool with_statistic = false)
      : ToyRun(
            [&] {
              options.mode = mode;
              options.shards = world().size() + 1;
              return tiny(options);
            }(),
            {.transport = &communicator, .change = [&](ModelState& state) {
               if (with_statistic) state.statistics = {&statistic};
             }}) {}
  /// at_the_end is called by the last operation of this rank's backward, whose gradient comes last.
  template <class AtTheEnd>
  ddp::StepResult step(std::uint64_t step, const AtTheEnd& at_the_end) {
    communicator.begin_step();
    const int last = replicas.shard_map().block(world().rank()).end() - 1;
    const ddp::StepResult result = ToyRun::step(step, watched([&](int shard) {
                                                  if (shard != last) return;
                                                  at_the_end();
                                                  last_operation_s = monotonic_s();
                                                }));
    // Backward was not over before its last operation; all sums and the header were complete by now.
    BOOST_TEST(result.exposed_comm_ms <= (monotonic_s() - last_operation_s) * 1e3 + slack_ms);
    BOOST_TEST(result.exposed_comm_ms >= communicator.waited_ms - slack_ms);
    return result;
  }
  double last_operation_s = 0;
};

constexpr int filled_buckets = 5;  // "nothing" has no elements

BOOST_AUTO_TEST_CASE(a_bucket_that_is_late_is_exposed_by_its_delay) {
  for (const ddp::Mode mode : all_modes) {
    Run run(mode);
    run.step(0, [] {});
    for (const int late : {0, filled_buckets - 1}) {
      if (mode == ddp::Mode::flat && late > 0) continue;  // it has one bucket
      run.communicator.held_sum = late;
      run.communicator.release = Holding::Release::in_wait;
      const ddp::StepResult result = run.step(1, [] {});
      BOOST_TEST(run.communicator.spins == 1);
      BOOST_TEST(result.exposed_comm_ms >= delay_ms - slack_ms);
      check_gradients(run.net, reference(1, world().size() + 1));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_bucket_that_is_late_is_exposed_behind_a_hook_too) {
  Run run(ddp::Mode::overlapped, {.hook = std::make_shared<PlainHook>()});
  run.step(0, [] {});
  run.communicator.release = Holding::Release::in_wait;
  BOOST_TEST(run.step(1, [] {}).exposed_comm_ms >= delay_ms - slack_ms);
  BOOST_TEST(run.communicator.spins == 1);
}

BOOST_AUTO_TEST_CASE(a_delay_that_is_over_before_backward_is_exposes_nothing) {
  Run run;
  run.step(0, [] {});
  run.communicator.release = Holding::Release::when_due;
  // Backward continues for as long as the first bucket is on its way. step() bounds what is exposed by what
  // came after that.
  const ddp::StepResult result = run.step(1, [&] { wait_until(run.communicator.due_s); });
  BOOST_TEST(run.communicator.due_s > 0);
  BOOST_TEST(run.communicator.spins == 0);
  BOOST_TEST(result.compute_ms >= delay_ms - slack_ms);
  const ddp::BucketTime first = run.replicas.bucket_times()[0];
  BOOST_TEST(first.done_ms - first.start_ms >= delay_ms - slack_ms);
}

BOOST_AUTO_TEST_CASE(the_rest_of_a_delay_that_backward_hides_in_part_is_exposed) {
  Run run;
  run.step(0, [] {});
  run.communicator.release = Holding::Release::when_due;
  // The last bucket starts when backward is all but over, so its delay cannot hide.
  run.communicator.held_sum = filled_buckets - 1;
  run.step(1, [] {});
  // From its start to its end is the delay at least, however the end of backward divides it.
  const ddp::BucketTime last = run.replicas.bucket_times().back();
  BOOST_TEST(last.done_ms - last.start_ms >= delay_ms - slack_ms);
}

BOOST_AUTO_TEST_CASE(a_slow_backward_is_compute_and_not_communication) {
  for (const ddp::Mode mode : all_modes) {
    Run run(mode);
    const ddp::StepResult result = run.step(0, [] { wait_until(monotonic_s() + delay_ms * 1e-3); });
    BOOST_TEST(result.compute_ms >= delay_ms - slack_ms);
  }
}

void check_times(Run& run, std::uint64_t step, ddp::Mode mode, std::size_t statistics) {
  const std::size_t buckets = run.replicas.plan().buckets().size();
  const Stopwatch watch;
  const ddp::StepResult result = run.step(step, [] {});
  const double all_ms = watch.elapsed_ms();
  const auto times = run.replicas.bucket_times();
  BOOST_TEST_REQUIRE(times.size() == buckets + statistics);
  double latest_ready_ms = 0;
  for (std::size_t b = 0; b < times.size(); ++b) {
    BOOST_TEST(times[b].ready_ms >= 0);
    BOOST_TEST(times[b].ready_ms <= times[b].start_ms);
    BOOST_TEST(times[b].start_ms <= times[b].done_ms);
    BOOST_TEST(times[b].done_ms <= all_ms + slack_ms);
    if (b > 0) BOOST_TEST(times[b - 1].start_ms <= times[b].start_ms);
    if (b > 0) BOOST_TEST(times[b - 1].done_ms <= times[b].done_ms);
    latest_ready_ms = std::max(latest_ready_ms, times[b].ready_ms);
  }
  if (mode != ddp::Mode::overlapped) BOOST_TEST(times[0].start_ms >= latest_ready_ms);
  BOOST_TEST(result.compute_ms + result.exposed_comm_ms <= all_ms + slack_ms);
}

BOOST_AUTO_TEST_CASE(buckets_are_ready_then_started_then_done_in_plan_order) {
  for (const ddp::Mode mode : all_modes) {
    for (const bool with_hook : {false, true}) {
      for (const bool with_statistic : {false, true}) {
        ddp::Options options;
        if (with_hook) options.hook = std::make_shared<PlainHook>();
        Run run(mode, options, with_statistic);
        for (std::uint64_t step = 0; step < 3; ++step) check_times(run, step, mode, with_statistic ? 1 : 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_times_of_a_bucket_are_those_of_its_own_sum) {
  // With the last operation slowed down, every bucket but the last is ready before, the last after.
  Run run;
  run.step(0, [] {});
  double before_ms = 0, after_ms = 0;
  Stopwatch watch;
  run.step(1, [&] {
    before_ms = watch.elapsed_ms();
    wait_until(monotonic_s() + delay_ms * 1e-3);
    after_ms = watch.elapsed_ms();
  });
  const auto times = run.replicas.bucket_times();
  // The step began after the watch, so its readings are the smaller.
  for (std::size_t b = 0; b + 1 < times.size(); ++b) BOOST_TEST(times[b].start_ms <= before_ms + slack_ms);
  BOOST_TEST(times.back().ready_ms - times[times.size() - 2].ready_ms >= after_ms - before_ms - slack_ms);
}

BOOST_AUTO_TEST_CASE(the_plan_names_every_trainable_parameter_once) {
  ToyRun run({.bucket_mb = 0.0002, .first_bucket_mb = tiny_mb}, {.change = [](ModelState& state) {
               state.params[1]->trainable = false;
               state.params.push_back(state.params[2]);
             }});
  for (std::uint64_t step = 0; step < 2; ++step) {
    const ddp::BucketPlan& plan = run.replicas.plan();
    std::set<std::string> names;
    for (const auto& gradient : plan.gradients()) {
      BOOST_TEST(names.insert(gradient.name).second, gradient.name << " twice");
      BOOST_TEST((gradient.shape == run.net[gradient.name].value.shape()), gradient.name);
    }
    const std::set<std::string> wanted{"in.weight", "tied.weight", "out.weight", "out.bias", "nothing"};
    BOOST_TEST(names == wanted, boost::test_tools::per_element());
    std::set<int> placed;
    for (const auto& bucket : plan.buckets()) placed.insert(bucket.gradients.begin(), bucket.gradients.end());
    BOOST_TEST(placed.size() == names.size());
    for (const std::string& theirs : world().all_gather_texts(std::to_string(plan.hash())))
      BOOST_TEST(theirs == std::to_string(plan.hash()));
    run.step(step);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
