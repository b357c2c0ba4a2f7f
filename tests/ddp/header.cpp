// The step header: one verdict for all ranks, the same bits at any number of them.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "ddp/step_header.h"
#include "ddp/toy.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(header, *ranks(1, 2, 3, 4))

/// Losses of very different sizes, so that another order of additions gives other bits. Not inlined, lest a
/// compiler fuse the product with the sums that are compared.
[[gnu::noinline]] double loss_sum(int shard) { return std::sin(shard + 1.0) * std::pow(10.0, shard % 7); }

Tensor total(double sum, double weight) {
  const Tensor tensor = Tensor::empty({2}, DType::float64);
  tensor.data<double>()[0] = sum;
  tensor.data<double>()[1] = weight;
  return tensor;
}

struct Fold {
  double sum, count;
};

Fold folded(int shards) {
  return comm::fold_tree(
      {0, shards},
      [](int shard) {
        return Fold{loss_sum(shard), 3.0 + shard};
      },
      [](const Fold& a, const Fold& b) {
        return Fold{a.sum + b.sum, a.count + b.count};
      });
}

BOOST_AUTO_TEST_CASE(losses_are_folded_along_the_tree_over_shards) {
  const auto backend = kernels::make_cpu_backend();
  for (int shards = 1; shards <= 25; ++shards) {
    const comm::ShardMap map(shards, world().size());
    const comm::ShardRange block = map.block(world().rank());
    const ddp::AccumulationSchedule schedule(shards, block);
    ddp::StepHeader header(map, schedule, 0, *backend);
    header.begin(0);
    for (int own = 0; own < block.count; ++own) {
      const int shard = block.first + own;
      const ddp::AccumulationSchedule::Group& group = schedule.groups()[static_cast<std::size_t>(own)];
      header.add_loss(group, true, total(loss_sum(shard), 3.0));
      header.add_loss(group, false, total(0.0, shard));
      header.end_group(group);
    }
    const kernels::Transfer losses = header.losses();
    backend->copy(losses.from, losses.to);
    header.exchange(world(), 1, {}, false, 10.0 + world().rank(), ddp::Usage(block.count, 0));
    BOOST_TEST(header.loss().sum == folded(shards).sum);
    BOOST_TEST(header.loss().count == folded(shards).count);
    for (int rank = 0; rank < world().size(); ++rank) BOOST_TEST(header.compute_ms(rank) == 10.0 + rank);
  }
}

BOOST_AUTO_TEST_CASE(usage_is_known_of_every_rank) {
  const int shards = 7;
  const std::size_t items = 130;
  const comm::ShardMap map(shards, world().size());
  const comm::ShardRange block = map.block(world().rank());
  ddp::Usage usage(block.count, items);
  // Item i is written in the shards that its last digits allow: none, all, or one.
  const auto writes = [](int shard, std::size_t item) {
    return item % 3 == 1 || (item % 3 == 2 && static_cast<int>(item % shards) == shard);
  };
  for (int own = 0; own < block.count; ++own) {
    for (std::size_t item = 0; item < items; ++item) {
      if (writes(block.first + own, item)) usage.set(own, item);
    }
  }
  const auto backend = kernels::make_cpu_backend();
  ddp::StepHeader header(map, ddp::AccumulationSchedule(shards, block), items, *backend);
  header.begin(0);
  header.exchange(world(), 1, {}, false, 0, usage);
  for (std::size_t item = 0; item < items; ++item) {
    BOOST_TEST(header.written(item) == (item % 3 != 0), item);
    BOOST_TEST(header.missed(item) == (item % 3 != 1), item);
  }
}

BOOST_AUTO_TEST_CASE(different_plans_are_an_error_that_names_both) {
  if (world().size() == 1) return;
  const comm::ShardMap map(4, world().size());
  const comm::ShardRange block = map.block(world().rank());
  const auto backend = kernels::make_cpu_backend();
  ddp::StepHeader header(map, ddp::AccumulationSchedule(4, block), 1, *backend);
  header.begin(0);
  header.exchange(world(), world().rank() == 1 ? 0xbad : 0x1, {}, false, 0, ddp::Usage(block.count, 1));
  const std::string text = same_error(ExitCode::training, [&] { header.check_agreement(); });
  BOOST_TEST(contains(text, "rank 1 holds bucket plan 0000000000000bad but rank 0 0000000000000001"));
}

BOOST_AUTO_TEST_CASE(the_loss_of_a_step_is_the_sum_over_the_global_batch) {
  ToyRun run({.shards = 4});
  Net net;
  const auto wanted = comm::fold_tree(
      {0, 4},
      [&](int shard) {
        Tape tape(*run.backend);
        tape.begin({.record = false});
        return plain_loss(net, tape, toy_shard(5, shard)).read().sum;
      },
      [](double a, double b) { return a + b; });
  const ddp::StepResult result = run.step(5);
  BOOST_TEST(result.step == 5u);
  BOOST_TEST(result.loss_sum == wanted);
  BOOST_TEST(result.count == 4 * 24.0);
  BOOST_TEST(result.mean_loss() == wanted / 96);
}

BOOST_AUTO_TEST_CASE(a_request_of_any_rank_reaches_all_at_the_end_of_the_same_step_once) {
  for (int asking = 0; asking < world().size(); ++asking) {
    ToyRun run({.shards = 4});
    if (world().rank() == asking) run.replicas.request({.stop_preempted = true});
    if (world().rank() == world().size() - 1) run.replicas.request({.checkpoint = true});
    BOOST_TEST((run.step(0).requests == ddp::Requests{.stop_preempted = true, .checkpoint = true}));
    BOOST_TEST(!run.step(1).requests.any());
    run.replicas.request({.stop_user = true});
    BOOST_TEST((run.step(2).requests == ddp::Requests{.stop_user = true}));
    if (world().rank() == asking) run.replicas.request({.saving = true, .save_failed = true});
    const ddp::Requests told = run.step(3).requests;
    BOOST_TEST((told == ddp::Requests{.saving = true, .save_failed = true}));
    BOOST_TEST(!told.any());  // no checkpoint is wanted
  }
}

BOOST_AUTO_TEST_CASE(a_request_survives_a_step_that_fails) {
  ToyRun run({.shards = 4});
  if (world().rank() == 0) run.replicas.request({.stop_user = true});
  same_error(ExitCode::data, [&] {
    run.step(0, [&](Net&, Tape&, const ToyShard&) -> Loss { throw DataError("nothing to read"); });
  });
  BOOST_TEST((run.step(1).requests == ddp::Requests{.stop_user = true}));
}

BOOST_AUTO_TEST_CASE(times_are_told_apart) {
  ToyRun run({.shards = 4});
  const ddp::StepResult result = run.step(0);
  BOOST_TEST(result.compute_ms > 0);
  BOOST_TEST(result.exposed_comm_ms >= 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
