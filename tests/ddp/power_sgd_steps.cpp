// PowerSGD: how it takes part in steps, from ranks without shards to what travels when, and what it refuses.
#include <limits>

#include "ddp/power_sgd.h"
#include "ddp/reducer.h"
#include "support/forwarding.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(power_sgd_steps, *ranks(1, 2, 3, 4))

using Run = PowerSgdRun;

/// A Reducer without a DataParallel: also with fewer shards than ranks, and a new plan whenever asked.
struct Bare {
  Bare(const ddp::PowerSgdOptions& power_sgd, int shards)
      : map(shards, world().size()),
        hook(std::make_shared<ddp::PowerSgd>(power_sgd)),
        backend(kernels::make_cpu_backend()),
        params(net.state().params),
        reducer(params, {}, world(), *backend, map,
                {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .hook = hook}) {}
  void step(std::uint64_t step) {
    reducer.begin_step(step);
    Tape tape(*backend);
    const comm::ShardRange block = map.block(world().rank());
    for (int shard = block.first; shard < block.end(); ++shard) {
      reducer.begin_shard(shard - block.first);
      reducer.begin_pass(true);
      tape.begin({.sink = &reducer});
      const Loss loss = plain_loss(net, tape, toy_shard(step, shard));
      reducer.begin_backward(tape.used_params());
      backward(loss);
      tape.finish_backward();
      reducer.end_pass();
    }
    reducer.wait();
  }
  Gradients sums() const {
    Gradients all;
    for (std::size_t p = 0; p < params.size(); ++p) all.push_back(elements(reducer.sum(static_cast<int>(p))));
    return all;
  }
  comm::ShardMap map;
  Net net;
  std::shared_ptr<ddp::PowerSgd> hook;
  std::unique_ptr<kernels::Backend> backend;
  std::vector<Param*> params;
  ddp::Reducer reducer;
};

BOOST_AUTO_TEST_CASE(ranks_without_shards_take_part) {
  Bare bare(full, 1);
  for (std::uint64_t step = 0; step < 4; ++step) {
    bare.step(step);
    const Gradients wanted = reference(step, 1), found = bare.sums();
    for (std::size_t p = 0; p < wanted.size(); ++p)
      BOOST_TEST(distance(found[p], wanted[p]) < 1e-5, bare.params[p]->name);
  }
}

BOOST_AUTO_TEST_CASE(a_plan_made_anew_changes_no_bit) {
  Bare steady(thin, 7), changing(thin, 7);
  for (std::uint64_t step = 0; step < 8; ++step) {
    steady.step(step);
    changing.step(step);
    BOOST_TEST(same_gradients(changing.sums(), steady.sums()), "step " << step);
    if (step % 2 == 0) changing.reducer.replan();
    BOOST_TEST(same_gradients(changing.sums(), steady.sums()), "a new plan after step " << step);
  }
}

/// Writes down what travels.
class Traffic final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  int sums = 0;
  std::int64_t elements = 0;
  bool narrow = true;
  comm::Ticket start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    ++sums;
    elements += sum.count;
    narrow = narrow && sum.wire == DType::bfloat16;
    return Forwarding::start_tree_sum(sum, map);
  }
};

BOOST_AUTO_TEST_CASE(a_bucket_is_one_sum_of_factors_in_backward_and_one_after_it_in_the_wires_type) {
  Traffic traffic(world());
  Run run(thin, 6, tiny_mb, traffic, DType::bfloat16);
  constexpr int filled_buckets = 5, compressed_buckets = 3;
  for (std::uint64_t step = 0; step < 5; ++step) {
    traffic.sums = 0;
    traffic.elements = 0;
    run.step(step);
    BOOST_TEST(traffic.sums == filled_buckets + (step < 2 ? 0 : compressed_buckets));
    // Each padded to 16: biases 7 and 4 go plain, factors are 7 + 5, 7 + 7 and 4 + 7; and who has failed.
    if (step >= 2) BOOST_TEST(traffic.elements == 16 * (2 + 2 * compressed_buckets + 1));
    BOOST_TEST(traffic.narrow);
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_remembered_before_a_step_was_compressed) {
  Run run(thin);
  for (std::uint64_t step = 0; step < 3; ++step) {
    BOOST_TEST(run.hook->state().empty());
    run.step(step);
  }
  const std::vector<ddp::HookState> states = run.hook->state();
  BOOST_REQUIRE(states.size() == 2);
  BOOST_TEST(states[0].name == "powersgd/q");
  BOOST_TEST(!states[0].by_rank);
  BOOST_TEST(states[1].name == "powersgd/error");
  BOOST_TEST(states[1].by_rank);
  for (const ddp::HookState& state : states) BOOST_TEST(state.entries.size() == 3);
  Run neither(forgetful);
  neither.step(0);
  BOOST_TEST(neither.hook->state().empty());
}

BOOST_AUTO_TEST_CASE(bad_settings_are_refused) {
  const auto refusal = [](const ddp::PowerSgdOptions& options) {
    return same_error(ExitCode::usage, [&] { ddp::PowerSgd hook(options); });
  };
  BOOST_TEST(contains(refusal({.rank = 0}), "rank = 0 must be at least 1"));
  BOOST_TEST(contains(refusal({.min_compression = 0}), "min_compression = 0 must be above 0"));
  BOOST_TEST(contains(refusal({.min_compression = std::numeric_limits<double>::quiet_NaN()}),
                      "min_compression = nan must be above 0"));
  BOOST_TEST(contains(refusal({.start_step = -1, .error_feedback = false, .warm_start = false}),
                      "start_step = -1 must not be negative"));
  for (const std::int64_t start_step : {0, 1}) {
    for (const bool feedback : {true, false}) {
      const std::string text =
          refusal({.start_step = start_step, .error_feedback = feedback, .warm_start = !feedback});
      BOOST_TEST(contains(text, "must be at least 2 with error_feedback or warm_start"));
    }
    ddp::PowerSgd fine({.start_step = start_step, .error_feedback = false, .warm_start = false});
  }
}

BOOST_AUTO_TEST_CASE(a_hook_of_another_data_parallel_is_refused) {
  Run run(thin);
  Net net;
  const std::string text = same_error(ExitCode::usage, [&] {
    ddp::DataParallel second(net.state(), world(), *run.backend, {.hook = run.hook});
  });
  BOOST_TEST(contains(text, "belongs to one DataParallel"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
