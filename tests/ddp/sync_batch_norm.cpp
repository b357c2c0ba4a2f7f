// SyncBatchNorm over ranks is BatchNorm over their batches in one: outputs, gradients, running statistics,
// training, with any number of samples on any rank.
#include "ddp/sync_batch_norm.h"
#include "support/ranks.h"

#include <boost/test/unit_test.hpp>
#include <memory>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(sync_batch_norm, *ranks(1, 2, 3, 4))

void check_both(const RowsOf& rows_of) {
  check_training<Dense>(world(), rows_of);
  check_training<Images>(world(), rows_of);
}

BOOST_AUTO_TEST_CASE(ranks_with_equal_batches_train_as_one) {
  check_both([](int) { return 4; });
}

BOOST_AUTO_TEST_CASE(ranks_with_unequal_batches_train_as_one) {
  check_both([](int rank) { return 2 + 3 * rank; });
}

BOOST_AUTO_TEST_CASE(ranks_with_one_sample_each_train_as_one) {
  if (world().size() == 1) return;  // one value a channel is an error
  check_both([](int) { return 1; });
}

BOOST_AUTO_TEST_CASE(ranks_without_samples_take_part) {
  for (int without = 0; without < world().size(); ++without)
    check_both([&](int rank) { return rank == without ? 0 : 3 + rank; });
}

BOOST_AUTO_TEST_CASE(one_rank_may_have_all_the_samples) {
  for (int with = 0; with < world().size(); ++with)
    check_both([&](int rank) { return rank == with ? 5 : 0; });
}

BOOST_AUTO_TEST_CASE(a_step_without_any_sample_changes_nothing) {
  check_both([](int) { return 0; });
  NormRun<Dense> run(world(), false);
  const std::vector<float> mean = elements(run.model.norm.running_mean.value);
  BOOST_TEST(run.step({0, {{world().rank(), Tensor::empty({0, 5}), Tensor::empty({0, 4})}}}).count == 0);
  BOOST_TEST(same_bits(elements(run.model.norm.running_mean.value), mean));
  BOOST_TEST(*run.model.norm.num_batches_tracked.value.data<std::int64_t>() == 0);
  for (const Param* const param : run.replicas.params()) {
    const std::vector<float> gradient = elements(param->gradient);
    BOOST_TEST((gradient == std::vector<float>(gradient.size(), 0)), param->name);
  }
}

BOOST_AUTO_TEST_CASE(a_converted_model_trains_with_the_same_bits_as_one_made_synchronized) {
  const auto run = [](auto& model) {
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(model, world(), *backend);
    optim::Sgd sgd(replicas, {.lr = 0.05});
    for (std::uint64_t step = 0; step < 3; ++step) {
      replicas.step(
          ToyBatch{step, {samples_of(step, world().rank(), 3 + world().rank())}},
          [&](Tape& tape, const ToyShard& shard) { return mse(model.forward(tape, shard.x), shard.y); });
      sgd.step();
    }
    BOOST_TEST(bool(replicas.layer_transport()));
  };
  Images made(false), converted(true);
  nn::convert_sync_batch_norm(converted);
  run(made);
  run(converted);
  check_same_state(converted, made);
}

BOOST_AUTO_TEST_CASE(a_model_converted_after_wrapping_is_refused_by_the_next_step_on_every_rank) {
  for (const int converts : {-1, world().size() - 1}) {  // -1: all ranks
    NormRun<Dense> run(world(), true);
    const auto step = [&](std::uint64_t number) {
      run.step({number, {samples_of(number, world().rank(), 3)}});
      run.sgd.step();
    };
    step(0);
    if (converts < 0 || converts == world().rank()) nn::convert_sync_batch_norm(run.model);
    const std::string text = same_error(ExitCode::usage, [&] { step(1); });
    BOOST_TEST(contains(text, "convert_sync_batch_norm"), text);
    nn::convert_sync_batch_norm(run.model);  // wrapped again, it trains
    ddp::DataParallel again(run.model, world(), *run.backend);
    BOOST_TEST(bool(again.layer_transport()));
  }
}

BOOST_AUTO_TEST_CASE(a_model_whose_layers_stay_on_their_rank_gets_no_communicator) {
  Images model(true);
  const auto backend = kernels::make_cpu_backend();
  BOOST_TEST(!ddp::DataParallel(model, world(), *backend).layer_transport());
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_have_statistics_of_their_own) {
  const int half = world().rank() % 2;
  const auto part = world().split(half, world().rank());
  check_training<Dense>(
      *part, [](int rank) { return 3 + rank; }, 10 * half);
}

/// The gradient of the first layer where the norm's own parameters are frozen.
std::vector<float> gradient_with_frozen_norm(comm::GradientTransport& transport, bool plain,
                                             const ToyBatch& batch) {
  Dense model(plain);
  nn::freeze(model, std::vector<std::string>{"norm.*"});
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(model, transport, *backend);
  replicas.step(
      batch, [&](Tape& tape, const ToyShard& shard) { return mse(model.forward(tape, shard.x), shard.y); });
  BOOST_TEST(!model.norm.weight.gradient);
  BOOST_TEST(!model.norm.bias.gradient);
  return elements(model.in.weight.gradient);
}

BOOST_AUTO_TEST_CASE(a_layer_whose_scale_and_shift_are_frozen_normalises_all_the_same) {
  std::vector<Tensor> x, y;
  for (int rank = 0; rank < world().size(); ++rank) {
    const ToyShard samples = samples_of(0, rank, 3);
    x.push_back(samples.x);
    y.push_back(samples.y);
  }
  const auto alone = comm::make_self_communicator();
  check_close(gradient_with_frozen_norm(world(), false, {0, {samples_of(0, world().rank(), 3)}}),
              gradient_with_frozen_norm(*alone, true, {0, {{0, stacked(x), stacked(y)}}}), "in.weight",
              1e-4f);
}

BOOST_AUTO_TEST_CASE(ranks_with_fewer_shards_join_every_pass_with_nothing) {
  const int shards = 2 * world().size() - 1, pieces = 2;
  Dense model(false);
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      model, world(), *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards, .micro_batches = pieces});
  const comm::ShardMap& map = replicas.shard_map();
  const comm::ShardRange block = map.block(world().rank());
  ToyBatch batch{0, {}};
  for (int shard = block.first; shard < block.end(); ++shard) batch.shards.push_back(samples_of(0, shard, 5));
  const ddp::StepResult result =
      replicas.step(batch, [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
        return mse(model.forward(tape, piece.rows(shard.x)), piece.rows(shard.y));
      });
  BOOST_TEST(result.count == shards * 20.0);

  // The same on one rank: what met in a pass is one batch.
  Dense plain(true);
  LocalGradients gradients(plain, *backend);
  Tape tape(*backend);
  const int most = map.block(0).count;
  for (int turn = 0; turn < most; ++turn) {
    for (int index = 0; index < pieces; ++index) {
      const ddp::MicroBatch piece{.index = index, .count = pieces};
      std::vector<Tensor> x, y;
      for (int rank = 0; rank < world().size(); ++rank) {
        const comm::ShardRange theirs = map.block(rank);
        const int shard = theirs.first + turn - (most - theirs.count);  // passes of nothing come first
        if (shard < theirs.first) continue;
        const ToyShard samples = samples_of(0, shard, 5);
        x.push_back(piece.rows(samples.x));
        y.push_back(piece.rows(samples.y));
      }
      tape.begin({.sink = &gradients});
      backward(mse(plain.forward(tape, stacked(x)), stacked(y)));
      tape.finish_backward();
    }
  }
  const auto params = replicas.params(), wanted = gradients.params();
  for (std::size_t p = 0; p < params.size(); ++p)
    check_close(elements(params[p]->gradient), elements(wanted[p]->gradient), params[p]->name, 1e-4f, 0.1f);
}

BOOST_AUTO_TEST_CASE(a_loss_that_takes_no_piece_is_refused_where_ranks_have_unequal_shards) {
  if (world().size() == 1) return;
  Dense model(false);
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(model, world(), *backend, {.shards = world().size() + 1});
  const std::string text = same_error(ExitCode::usage, [&] {
    replicas.step(ToyBatch{}, [&](Tape& tape, const ToyShard& shard) {
      return mse(model.forward(tape, shard.x), shard.y);
    });
  });
  BOOST_TEST(contains(text, "need a loss that takes a micro-batch"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
