// SyncBatchNorm over ranks is BatchNorm over their batches in one: outputs, gradients, running statistics,
// training, with any number of samples on any rank.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>
#include <numeric>

#include "ddp/training.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/conv2d.h"
#include "lockstep/nn/linear.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::test {
namespace {

constexpr float momentum = 0.3f;

/// Between dense layers: x is [N, C]. With `plain` the same network whose norm sees its own batch alone.
struct Dense : nn::Module {
  explicit Dense(bool plain) : norm(*this, "norm", 7, {.momentum = momentum, .sync = !plain}) {}
  Var forward(Tape& tape, const Tensor& x) { return out(relu(norm(in(tape.constant(x))))); }
  nn::Linear in{*this, "in", 5, 7, false};
  nn::BatchNorm2d norm;
  nn::Linear out{*this, "out", 7, 4};
};

/// Between convolutions: x is [N, C, H, W], which convolutions keep in channel blocks.
struct Images : nn::Module {
  explicit Images(bool plain) : norm(*this, "norm", 6, {.momentum = momentum, .sync = !plain}) {}
  Var forward(Tape& tape, const Tensor& x) {
    const std::int64_t n = x.size(0);
    const Var h = relu(norm(first(tape.constant(x.reshape({n, 5, 1, 1})))));
    return reshape(global_avg_pool2d(second(h)), {n, 4});
  }
  nn::Conv2d first{*this, "first", 5, 6, 1, {.bias = false}};
  nn::BatchNorm2d norm;
  nn::Conv2d second{*this, "second", 6, 4, 1};
};

/// What a rank has of a step: any number of samples that depend on (step, rank) only.
ToyShard samples_of(std::uint64_t step, int rank, std::int64_t rows) {
  ToyShard made{rank, Tensor::empty({rows, 5}), Tensor::empty({rows, 4})};
  const RandomKey key{.seed = 21, .step = step, .shard = static_cast<std::uint32_t>(rank)};
  fill_normal(made.x, key);
  for (std::int64_t i = 0; i < made.x.numel(); ++i)
    made.x.data<float>()[i] += static_cast<float>(rank);  // ranks see different distributions
  fill_normal(made.y, {.seed = 22, .step = step, .shard = key.shard});
  return made;
}

using RowsOf = std::function<std::int64_t(int rank)>;

template <class Model>
struct Run {
  Run(comm::Communicator& communicator, bool plain)
      : model(plain),
        replicas(model, communicator, *backend,
                 {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .layer_communicator = !plain}),
        sgd(replicas, {.lr = 0.05}) {}
  ddp::StepResult step(const ToyBatch& batch) {
    outputs.clear();
    return replicas.step(batch, [&](Tape& tape, const ToyShard& shard) {
      const Var out = model.forward(tape, shard.x);
      outputs = elements(out.value());
      return mse(out, shard.y);
    });
  }
  Model model;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
  optim::Sgd sgd;
  std::vector<float> outputs;
};

/// Trains some steps on the ranks of `communicator` and beside it, on this rank alone, on their batches in
/// one; everything must agree. Ranks are told apart by `first_rank`, so that parts of a split differ.
template <class Model>
void check_training(comm::Communicator& communicator, const RowsOf& rows_of, int first_rank = 0) {
  const auto alone = comm::make_self_communicator();
  Run<Model> many(communicator, false), one(*alone, true);
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<Tensor> x, y;
    std::int64_t before_mine = 0;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const ToyShard samples = samples_of(step, first_rank + rank, rows_of(rank));
      x.push_back(samples.x);
      y.push_back(samples.y);
      if (rank < communicator.rank()) before_mine += samples.x.size(0);
    }
    ToyBatch mine{step, {samples_of(step, first_rank + communicator.rank(), rows_of(communicator.rank()))}};
    mine.shards[0].index = communicator.rank();
    const ddp::StepResult found = many.step(mine);
    const ddp::StepResult wanted = one.step({step, {{0, stacked(x), stacked(y)}}});

    BOOST_TEST(found.weight == wanted.weight);
    BOOST_TEST(found.loss_sum == wanted.loss_sum, boost::test_tools::tolerance(1e-5));
    const auto first = one.outputs.begin() + before_mine * 4;
    check_close(many.outputs, {first, first + mine.shards[0].x.size(0) * 4}, "output", 1e-4f);
    const auto params = many.replicas.params(), others = one.replicas.params();
    for (std::size_t p = 0; p < params.size(); ++p)
      check_close(elements(params[p]->gradient), elements(others[p]->gradient), params[p]->name, 1e-4f, 0.1f);
    if (wanted.weight > 0) {
      many.sgd.step();
      one.sgd.step();
    }
    check_close_state(many.model, one.model, 1e-4f);
    many.replicas.check_replicas();
  }
}

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
  Run<Dense> run(world(), false);
  const std::vector<float> mean = elements(run.model.norm.running_mean.value);
  BOOST_TEST(run.step({0, {{world().rank(), Tensor::empty({0, 5}), Tensor::empty({0, 4})}}}).weight == 0);
  BOOST_TEST(same_bits(elements(run.model.norm.running_mean.value), mean));
  BOOST_TEST(*run.model.norm.num_batches_tracked.value.data<std::int64_t>() == 0);
  for (const Param* const param : run.replicas.params()) {
    const std::vector<float> gradient = elements(param->gradient);
    BOOST_TEST((gradient == std::vector<float>(gradient.size(), 0)), param->name);
  }
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_split_have_statistics_of_their_own) {
  const int half = world().rank() % 2;
  const auto part = world().split(half, world().rank());
  check_training<Dense>(
      *part, [](int rank) { return 3 + rank; }, 10 * half);
}

/// The gradient of the first layer where the norm's own parameters are frozen.
std::vector<float> gradient_with_frozen_norm(comm::Communicator& communicator, bool plain,
                                             const ToyBatch& batch) {
  Dense model(plain);
  nn::freeze(model, std::vector<std::string>{"norm.*"});
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(model, communicator, *backend, {.layer_communicator = !plain});
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
  ddp::DataParallel replicas(model, world(), *backend,
                             {.bucket_mb = tiny_mb,
                              .first_bucket_mb = tiny_mb,
                              .shards = shards,
                              .micro_batches = pieces,
                              .layer_communicator = true});
  const comm::ShardMap& map = replicas.shard_map();
  const comm::ShardRange block = map.block(world().rank());
  ToyBatch batch{0, {}};
  for (int shard = block.first; shard < block.end(); ++shard) batch.shards.push_back(samples_of(0, shard, 5));
  const ddp::StepResult result =
      replicas.step(batch, [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
        return mse(model.forward(tape, piece.rows(shard.x)), piece.rows(shard.y));
      });
  BOOST_TEST(result.weight == shards * 20.0);

  // The same on one rank: what met in a pass is one batch.
  Dense plain(true);
  LocalGradients gradients(plain, *backend);
  Tape tape(*backend);
  const int most = map.block(0).count;
  for (int turn = 0; turn < most; ++turn) {
    for (int index = 0; index < pieces; ++index) {
      const ddp::Piece piece{.index = index, .count = pieces};
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
  ddp::DataParallel replicas(model, world(), *backend,
                             {.shards = world().size() + 1, .layer_communicator = true});
  const std::string text = same_error(ExitCode::usage, [&] {
    replicas.step(ToyBatch{}, [&](Tape& tape, const ToyShard& shard) {
      return mse(model.forward(tape, shard.x), shard.y);
    });
  });
  BOOST_TEST(contains(text, "need a loss that takes a piece"));
}

}  // namespace
}  // namespace lockstep::test
