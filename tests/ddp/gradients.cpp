// A data-parallel step gives the bits of the serial reference, at any number of ranks.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "ddp/toy.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gradients, *ranks(1, 2, 3, 4))

BOOST_AUTO_TEST_CASE(gradients_are_the_tree_sum_over_shards_bit_for_bit) {
  for (int shards = world().size(); shards <= 12; ++shards) {
    const Gradients wanted = reference(0, shards);
    for (const double bucket_mb : {tiny_mb, 0.0002, 25.0}) {
      ToyRun run({.bucket_mb = bucket_mb, .first_bucket_mb = bucket_mb, .shards = shards});
      const ddp::StepResult result = run.step(0);
      check_gradients(run.net, wanted);
      BOOST_TEST(result.count == shards * 24.0);
      BOOST_TEST(run.replicas.count() == result.count);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_plan_made_anew_keeps_the_bits_of_this_step_and_the_next) {
  ToyRun run({.bucket_mb = 0.0002, .first_bucket_mb = tiny_mb, .shards = 5});
  const std::uint64_t first_hash = run.replicas.plan().hash();
  for (std::uint64_t step = 0; step < 4; ++step) run.check_step(step);
  // "nothing" is registered last, but its gradient does not come first.
  BOOST_TEST(run.replicas.plan().hash() != first_hash);
}

BOOST_AUTO_TEST_CASE(a_new_plan_follows_the_order_of_arrival_and_is_made_once) {
  ToyRun run(tiny({.shards = 4}));
  BOOST_TEST((run.replicas.plan().order() == std::vector{5, 4, 3, 2, 1, 0}));
  run.step(0);
  const std::vector<int> order = run.replicas.plan().order();
  const auto place = [&](int param) { return std::find(order.begin(), order.end(), param) - order.begin(); };
  BOOST_TEST(place(3) < place(2));  // out.weight before tied.weight before in.weight
  BOOST_TEST(place(2) < place(0));
  run.step(1);
  BOOST_TEST((run.replicas.plan().order() == order));
}

BOOST_AUTO_TEST_CASE(micro_batches_add_up_in_order_within_a_shard) {
  for (const int pieces : {2, 3}) {
    ToyRun run(tiny({.shards = 5, .micro_batches = pieces}));
    for (std::uint64_t step = 0; step < 2; ++step) {
      BOOST_TEST(run.step(step).count == 5 * 24.0);
      check_gradients(run.net, reference(step, 5, pieces));
    }
  }
}

BOOST_AUTO_TEST_CASE(micro_batches_need_a_loss_that_takes_pieces) {
  ToyRun run({.shards = 4, .micro_batches = 2});
  const std::string text = same_error(ExitCode::usage, [&] {
    run.replicas.step(toy_batch(0, run.replicas),
                      [&](Tape& tape, const ToyShard& shard) { return plain_loss(run.net, tape, shard); });
  });
  BOOST_TEST(contains(text, "micro_batches = 2"));
}

BOOST_AUTO_TEST_CASE(pieces_draw_random_numbers_of_their_own) {
  ToyRun run({.shards = 5, .micro_batches = 2});
  run.replicas.step(
      toy_batch(0, run.replicas), [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
        BOOST_TEST(tape.pass().shard == static_cast<std::uint32_t>(2 * shard.index + piece.index));
        return run.net.loss(tape, piece.rows(shard.x), piece.rows(shard.y));
      });
}

BOOST_AUTO_TEST_CASE(every_rank_starts_from_the_values_of_rank_0) {
  const auto seed = static_cast<std::uint64_t>(world().rank() + 1);
  ToyRun run({.shards = 4}, {.seed = seed});
  Net first(1);
  for (std::size_t p = 0; p < first.params.size(); ++p)
    BOOST_TEST(same_bits(elements(run.net.params[p].value), elements(first.params[p].value)));
  run.check_step(0);
}

BOOST_AUTO_TEST_CASE(buffers_start_from_those_of_rank_0) {
  Buffer counter{"counter", Tensor::zeros({3}, DType::int64)};
  std::fill_n(counter.value.data<std::int64_t>(), 3, 40 + world().rank());
  ToyRun run({}, {.change = [&](ModelState& state) { state.buffers.push_back(&counter); }});
  for (int i = 0; i < 3; ++i) BOOST_TEST(counter.value.data<std::int64_t>()[i] == 40);
}

BOOST_AUTO_TEST_CASE(frozen_parameters_get_no_gradient_and_travel_in_no_bucket) {
  ToyRun run({.shards = 4}, {.change = [](ModelState& state) { state.params[2]->trainable = false; }});
  run.step(0);
  BOOST_TEST(!run.net["tied.weight"].gradient);
  BOOST_TEST(run.replicas.params().size() == run.net.params.size());
  BOOST_TEST(run.replicas.plan().gradients().size() == run.net.params.size() - 1);
  const Gradients wanted = reference(0, 4);
  for (const std::size_t p : {0, 1, 3, 4})
    BOOST_TEST(same_bits(elements(run.net.params[p].gradient), wanted[p]), run.net.params[p].name);
}

BOOST_AUTO_TEST_CASE(a_parameter_listed_twice_counts_once) {
  ToyRun run({.shards = 5}, {.change = [](ModelState& state) { state.params.push_back(state.params[2]); }});
  run.check_step(0);
  BOOST_TEST(run.replicas.params().size() == run.net.params.size());
}

class Sum final : public Statistic {
 public:
  const std::string& name() const override { return name_; }
  std::int64_t elements() const override { return 3; }
  void apply(kernels::Backend&, const Tensor& sum) override {
    total.assign(sum.data<double>(), sum.data<double>() + sum.numel());
    ++applied;
  }
  std::vector<double> total;
  int applied = 0;

 private:
  std::string name_ = "sum";
};

/// Not inlined, lest a compiler fuse its product with the sums that are compared.
[[gnu::noinline]] double term(int shard, int element) {
  return std::sin(1.0 + shard * 3 + element) * std::pow(10.0, shard % 5);
}

BOOST_AUTO_TEST_CASE(statistics_are_summed_over_shards_along_the_tree) {
  for (const int shards : {4, 7, 12}) {
    Sum sum, idle;
    ToyRun run({.shards = shards}, {.change = [&](ModelState& state) { state.statistics = {&sum, &idle}; }});
    const auto contribute = [&](GradientSink& sink, int shard) {
      const GradientView view = sink.gradient_view(sum);
      double* const values = view.memory.data<double>();
      for (int i = 0; i < 3; ++i) values[i] = view.accumulate ? values[i] + term(shard, i) : term(shard, i);
      sink.contributed(sum);
    };
    for (std::uint64_t step = 0; step < 2; ++step) {
      run.step(step, [&](Net& net, Tape& tape, const ToyShard& shard) {
        contribute(*tape.pass().sink, shard.index);
        contribute(*tape.pass().sink, 2 * shard.index);  // a module that is called twice
        return plain_loss(net, tape, shard);
      });
      BOOST_TEST(sum.applied == static_cast<int>(step) + 1);
      for (int i = 0; i < 3; ++i) {
        const double wanted = comm::fold_tree(
            {0, shards}, [&](int shard) { return term(shard, i) + term(2 * shard, i); },
            [](double a, double b) { return a + b; });
        BOOST_TEST(sum.total.at(static_cast<std::size_t>(i)) == wanted);
      }
      check_gradients(run.net, reference(step, shards));
    }
    BOOST_TEST(idle.applied == 0);
  }
}

BOOST_AUTO_TEST_CASE(layers_that_meet_across_ranks_find_every_rank_in_every_pass) {
  const int shards = 6;  // uneven on 4 ranks
  ToyRun run({.shards = shards}, {.change = [](ModelState& state) { state.meets_across_ranks = true; }});
  int passes = 0;
  run.replicas.step(toy_batch(0, run.replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                      comm::GradientTransport* const meeting = tape.pass().layer_transport;
                      BOOST_REQUIRE(meeting);
                      const std::int64_t rows = piece.rows(shard.x).size(0);
                      std::vector<std::int64_t> all(static_cast<std::size_t>(meeting->group().size()));
                      meeting->group().all_gather(&rows, sizeof rows, all.data());
                      ++passes;
                      BOOST_TEST(rows == (piece.empty ? 0 : 6));
                      return run.net.loss(tape, piece.rows(shard.x), piece.rows(shard.y));
                    });
  BOOST_TEST(passes == run.replicas.shard_map().block(0).count);
  check_gradients(run.net, reference(0, shards));
}

/// Its shards are made as they are asked for, and can be asked for once.
struct OnceBatch {
  std::uint64_t step = 0;
  comm::ShardRange block{};
  int made = 0;

  struct Iterator {
    OnceBatch* batch;
    int shard;
    Iterator(OnceBatch* of, int first) : batch(of), shard(first) {}
    Iterator(Iterator&&) = default;
    Iterator& operator=(Iterator&&) = default;
    ToyShard operator*() const {
      ++batch->made;
      return toy_shard(batch->step, shard);
    }
    Iterator& operator++() {
      ++shard;
      return *this;
    }
    bool operator!=(int end) const { return shard != end; }
  };
  Iterator begin() { return {this, block.first}; }
  int end() const { return block.end(); }
};

BOOST_AUTO_TEST_CASE(a_batch_is_gone_through_once) {
  ToyRun run({.shards = 5});
  OnceBatch batch{.step = 0, .block = run.replicas.shard_map().block(world().rank())};
  run.replicas.step(batch, [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
    return run.net.loss(tape, piece.rows(shard.x), piece.rows(shard.y));
  });
  BOOST_TEST(batch.made == batch.block.count);
  check_gradients(run.net, reference(0, 5));
}

BOOST_AUTO_TEST_CASE(evaluation_passes_run_between_steps) {
  ToyRun run({.shards = 4});
  run.step(0);
  Tape& tape = run.replicas.tape();
  tape.begin({.training = false, .record = false});
  const ToyShard shard = toy_shard(9, world().rank());
  BOOST_TEST(run.net.loss(tape, shard.x, shard.y).read().count == 24.0);
  check_gradients(run.net, reference(0, 4));
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(the_accumulators_and_buckets_are_told_for_the_banner) {
  ToyRun run({.shards = 12});
  const std::string text = run.replicas.describe();
  BOOST_TEST(contains(text, "12 shards on " + std::to_string(world().size()) + " rank"));
  BOOST_TEST(contains(text, "1 bucket of up to"));
  if (world().size() == 1)
    BOOST_TEST(run.replicas.accumulation_buffers() == 4);  // 8 + 4 shards: 8 take 4 buffers
  if (world().size() == 3) BOOST_TEST(run.replicas.accumulation_buffers() == 3);  // 4 shards each
  BOOST_TEST(contains(text, std::to_string(run.replicas.accumulation_buffers()) + " accumulation buffers"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
