// The ways in which gradients travel: the same bits, and the simple ones start nothing before backward is
// over.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/optim/adamw.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(modes, *ranks(1, 2, 3, 4))

/// Writes down the sums in flight, and which are waited for.
class Watching final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  struct Sum {
    comm::Work work;
    std::int64_t elements;
    DType dtype;
  };
  std::vector<Sum> sums;
  std::vector<comm::Work> waits;
  bool one_at_a_time = true;  ///< each sum was waited for before the next was started

  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    if (!sums.empty() && std::find(waits.begin(), waits.end(), sums.back().work) == waits.end())
      one_at_a_time = false;
    sums.push_back({Forwarding::start_tree_sum(sum, map), sum.count, sum.dtype});
    return sums.back().work;
  }
  void order_after(comm::Work work) override {
    waits.push_back(work);
    Forwarding::order_after(work);
  }
  void forget() {
    sums.clear();
    waits.clear();
    one_at_a_time = true;
  }
};

BOOST_AUTO_TEST_CASE(every_mode_gives_the_same_bits) {
  for (int shards = world().size(); shards <= world().size() + 3; ++shards) {
    for (const int pieces : {1, 2}) {
      for (const ddp::Mode mode : all_modes) {
        ToyRun run({.bucket_mb = 0.0002,
                    .first_bucket_mb = tiny_mb,
                    .shards = shards,
                    .micro_batches = pieces,
                    .mode = mode});
        for (std::uint64_t step = 0; step < 3; ++step) run.check_step(step);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_simple_modes_start_nothing_before_the_last_backward_is_over) {
  for (const ddp::Mode mode : {ddp::Mode::flat, ddp::Mode::per_parameter}) {
    Watching transport(world());
    ToyRun run(tiny({.shards = 2 * world().size(), .mode = mode}), {.transport = &transport});
    for (std::uint64_t step = 0; step < 3; ++step) {
      int ends = 0;
      transport.forget();
      run.step(step, watched({}, [&](int) {
                 ++ends;
                 BOOST_TEST(transport.sums.empty());
               }));
      BOOST_TEST(ends == 2);
      BOOST_TEST(!transport.sums.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(flat_is_one_sum_over_all_gradients) {
  Watching transport(world());
  ToyRun run(tiny({.mode = ddp::Mode::flat}), {.transport = &transport});
  for (std::uint64_t step = 0; step < 3; ++step) {
    transport.forget();
    run.step(step);
    BOOST_TEST(run.replicas.plan().buckets().size() == 1u);
    BOOST_TEST_REQUIRE(transport.sums.size() == 1u);
    BOOST_TEST(static_cast<std::size_t>(transport.sums[0].elements) * 4 == run.replicas.plan().bytes());
  }
}

BOOST_AUTO_TEST_CASE(per_parameter_is_one_sum_a_parameter_one_after_another) {
  Watching transport(world());
  ToyRun run(tiny({.mode = ddp::Mode::per_parameter}), {.transport = &transport});
  for (std::uint64_t step = 0; step < 3; ++step) {
    transport.forget();
    run.step(step);
    BOOST_TEST_REQUIRE(transport.sums.size() == 5u);  // "nothing" has no elements
    for (std::size_t i = 0; i < 5; ++i) {
      const auto& bucket = run.replicas.plan().buckets()[i];
      std::int64_t elements = 0, filled = 0;
      for (const int g : bucket.gradients) {
        const auto n = run.net.params[static_cast<std::size_t>(g)].value.numel();
        elements += n;
        filled += n > 0;
      }
      BOOST_TEST(filled == 1);
      BOOST_TEST(elements <= bucket.elements());
    }
    BOOST_TEST(transport.one_at_a_time);
  }
}

BOOST_AUTO_TEST_CASE(every_mode_trains_with_parameters_that_some_leave_out) {
  const int shards = world().size() + 1;
  const LossOf sometimes_deep = [](Net& net, Tape& tape, const ToyShard& shard) {
    return shard.index == 1 ? plain_loss(net, tape, shard) : shallow(net, tape, shard);
  };
  for (const ddp::Mode mode : all_modes) {
    ToyRun run(tiny({.shards = shards, .unused = ddp::Unused::allow, .mode = mode}));
    for (std::uint64_t step = 0; step < 3; ++step) run.check_step(step, sometimes_deep);
  }
}

BOOST_AUTO_TEST_CASE(another_mode_on_one_rank_is_told) {
  if (world().size() == 1) return;
  const bool odd = world().rank() + 1 == world().size();
  const std::string text = same_error(
      ExitCode::usage, [&] { ToyRun run({.mode = odd ? ddp::Mode::flat : ddp::Mode::overlapped}); });
  BOOST_TEST(contains(text, "'option mode overlapped' on rank 0, but 'option mode flat' on rank"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
