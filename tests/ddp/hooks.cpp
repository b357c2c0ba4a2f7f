// Hooks of a caller's own: which buckets they are given, when, and what becomes of an error.
#include <boost/test/unit_test.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "ddp/toy.h"
#include "lockstep/ops/elementwise.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(hooks, *ranks(1, 2, 3, 4))

/// Sums as if it were not there, and writes down what it is asked.
class Noting : public ddp::Hook {
 public:
  std::vector<int> started;
  std::vector<std::uint64_t> steps;
  int bound = 0, finished = 0;

  std::string describe() const override { return "noting"; }
  void bind(ddp::Buckets& buckets) override {
    buckets_ = &buckets;
    ++bound;
    works_.assign(buckets.plan().buckets().size(), 0);
  }
  void begin_step(std::uint64_t step) override {
    steps.push_back(step);
    started.clear();
  }
  void start(int bucket) override {
    started.push_back(bucket);
    is_last_.push_back(bucket + 1 == static_cast<int>(buckets_->plan().buckets().size()));
    works_[static_cast<std::size_t>(bucket)] = buckets_->start_sum(bucket);
  }
  void finish() override {
    ++finished;
    for (const comm::Work work : works_) {
      if (work != 0) buckets_->transport().order_after(work);
    }
  }
  /// Of the last step, in the order of starting.
  std::vector<bool> take_last_marks() { return std::exchange(is_last_, {}); }
  const std::vector<comm::Work>& works() const { return works_; }

 protected:
  ddp::Buckets* buckets_ = nullptr;

 private:
  std::vector<comm::Work> works_;
  std::vector<bool> is_last_;
};

/// Leaves the gradients of each rank alone: nothing travels.
class Silent final : public Noting {
 public:
  void start(int bucket) override { started.push_back(bucket); }
  void finish() override { ++finished; }
};

/// Doubles the sums.
class Doubling final : public Noting {
 public:
  void finish() override {
    Noting::finish();
    for (const int bucket : started) {
      const Tensor sum = buckets_->bucket(bucket, 0);
      buckets_->backend().run(ops::scale(sum, 2, sum));
    }
  }
};

std::vector<int> in_order(const ToyRun& run) {
  std::vector<int> all(run.replicas.plan().buckets().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return all;
}

BOOST_AUTO_TEST_CASE(a_hook_that_sums_plainly_gives_the_bits_of_no_hook) {
  for (const int shards : {4, 7}) {
    for (const ddp::Mode mode : all_modes) {
      ToyRun run(tiny({.shards = shards, .mode = mode, .hook = std::make_shared<Noting>()}));
      for (std::uint64_t step = 0; step < 3; ++step) run.check_step(step);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_hook_gets_every_bucket_once_in_plan_order_and_sees_which_is_the_last) {
  for (const double bucket_mb : {tiny_mb, 25.0}) {
    const auto hook = std::make_shared<Noting>();
    ToyRun run({.bucket_mb = bucket_mb, .first_bucket_mb = bucket_mb, .shards = 5, .hook = hook});
    for (std::uint64_t step = 0; step < 3; ++step) {
      const std::vector<int> wanted = in_order(run);
      run.step(step);
      BOOST_TEST(hook->started == wanted, boost::test_tools::per_element());
      std::vector<bool> marks(wanted.size());
      marks.back() = true;
      BOOST_TEST((hook->take_last_marks() == marks));
      BOOST_TEST(hook->finished == static_cast<int>(step) + 1);
    }
    BOOST_TEST((hook->steps == std::vector<std::uint64_t>{0, 1, 2}));
    BOOST_TEST(hook->bound == 2);  // once more when the plan was remade
  }
}

BOOST_AUTO_TEST_CASE(a_hook_may_send_nothing) {
  const auto hook = std::make_shared<Silent>();
  ToyRun run(tiny({.shards = world().size(), .hook = hook}));
  run.step(0);
  Net other;
  check_gradients(run.net, shard_gradients(other, *run.backend, toy_shard(0, world().rank()), 1, plain_loss));
}

BOOST_AUTO_TEST_CASE(what_a_hook_leaves_in_accumulator_0_is_the_gradient) {
  ToyRun run(tiny({.shards = 6, .hook = std::make_shared<Doubling>()}));
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.step(step);
    Gradients wanted = reference(step, 6);
    for (std::vector<float>& gradient : wanted) {
      for (float& value : gradient) value *= 2;
    }
    check_gradients(run.net, wanted);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_fails_gives_its_hook_every_bucket_all_the_same) {
  const auto hook = std::make_shared<Noting>();
  ToyRun run(tiny({.shards = 4, .hook = hook}));
  same_error(ExitCode::data, [&] {
    run.step(0, [&](Net& net, Tape& tape, const ToyShard& shard) {
      if (shard.index == 3) throw DataError("shard 3 is broken");
      return plain_loss(net, tape, shard);
    });
  });
  BOOST_TEST(hook->started == in_order(run), boost::test_tools::per_element());
  run.check_step(1);
}

/// On a device waiting lets the program continue: only done() tells that a sum is there.
BOOST_AUTO_TEST_CASE(a_step_ends_when_the_sums_of_its_hook_are_complete) {
  class Asked final : public Forwarding {
   public:
    using Forwarding::Forwarding;
    std::set<comm::Work> works;
    bool done(comm::Work work) override {
      works.insert(work);
      return Forwarding::done(work);
    }
  } transport(world());
  const auto hook = std::make_shared<Noting>();
  ToyRun run(tiny({.hook = hook}), {.transport = &transport});
  for (std::uint64_t step = 0; step < 2; ++step) run.step(step);
  for (const comm::Work work : hook->works()) BOOST_TEST((work == 0 || transport.works.contains(work)));
}

BOOST_AUTO_TEST_CASE(hooks_that_differ_between_ranks_are_refused) {
  struct Named final : Noting {
    std::string describe() const override { return "named " + std::to_string(world().rank() / 2); }
  };
  if (world().size() < 3) return;
  const std::string text =
      same_error(ExitCode::usage, [] { ToyRun run({.hook = std::make_shared<Named>()}); });
  BOOST_TEST(contains(text, "'option hook named 0' on rank 0, but 'option hook named 1' on rank"));
}

/// Throws where it is told to; on all ranks, so that this program can continue.
class Throwing final : public Noting {
 public:
  bool in_start = false, in_finish = false;
  void start(int bucket) override {
    if (in_start) throw std::runtime_error("no room in start");
    Noting::start(bucket);
  }
  void finish() override {
    Noting::finish();
    if (in_finish) throw std::runtime_error("no room in finish");
  }
};

BOOST_AUTO_TEST_CASE(what_a_hook_throws_leaves_the_step_as_it_is) {
  for (const bool in_start : {true, false}) {
    const auto hook = std::make_shared<Throwing>();
    ToyRun run(tiny({.shards = 4, .hook = hook}));
    run.step(0);
    (in_start ? hook->in_start : hook->in_finish) = true;
    // Not an error of the step, agreed with the peers: these may wait for this rank's part.
    BOOST_CHECK_EXCEPTION(run.step(1), std::runtime_error, [&](const std::runtime_error& error) {
      return std::string(error.what()) == (in_start ? "no room in start" : "no room in finish");
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
