// Callers' own loops over uneven inputs: a rank that has run out of samples continues with empty shards until
// nobody has any, and the result is that of one process over the same samples.
#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>

#include "ddp/training.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(uneven, *ranks(1, 2, 3, 4))

enum class Norm { none, plain, sync };

struct Model : nn::Module {
  explicit Model(Norm wanted)
      : kind(wanted), norm(*this, "norm", 7, {.momentum = 0.3f, .sync = wanted == Norm::sync}) {
    if (wanted == Norm::none) norm.weight.trainable = norm.bias.trainable = false;
  }
  /// `side` also goes through a layer that other passes leave out.
  Var forward(Tape& tape, const Tensor& x, bool side) {
    Var h = in(tape.constant(x));
    if (kind != Norm::none) h = norm(h);
    h = relu(h);
    if (side) h = h + relu(extra(h));
    return out(h);
  }
  Norm kind;
  nn::Linear in{*this, "in", 5, 7, false};
  nn::BatchNorm2d norm;
  nn::Linear extra{*this, "extra", 7, 7};
  nn::Linear out{*this, "out", 7, 4};
};

/// How many batches each rank has of its own, and how many samples are in them.
struct Inputs {
  std::function<int(int rank)> batches;
  std::function<std::int64_t(int rank, int batch)> rows;

  ToyShard of(int rank, int batch) const {
    const std::int64_t n = batch < batches(rank) ? rows(rank, batch) : 0;
    ToyShard made{rank, Tensor::empty({n, 5}), Tensor::empty({n, 4})};
    const RandomKey key{
        .seed = 31, .step = static_cast<std::uint64_t>(batch), .shard = static_cast<std::uint32_t>(rank)};
    fill_normal(made.x, key);
    fill_normal(made.y, {.seed = 32, .step = key.step, .shard = key.shard});
    return made;
  }
  std::int64_t samples(int ranks) const {
    std::int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int batch = 0; batch < batches(rank); ++batch) all += rows(rank, batch);
    }
    return all;
  }
};

/// The inputs of all ranks, in one process: as so many shards, or as one.
enum class Cut { as_ranks, whole };

/// SGD where bits are not compared: AdamW makes a full step of the rounding of a gradient that is zero.
std::unique_ptr<optim::Optimizer> make_optimizer(Norm norm, GradientSource& source) {
  if (norm == Norm::sync)
    return std::make_unique<optim::Sgd>(source, optim::SgdOptions{.lr = 0.05, .momentum = 0.9});
  return std::make_unique<optim::AdamW>(source, optim::AdamWOptions{.lr = 0.01});
}

struct Loop {
  Loop(comm::GradientTransport& transport, Norm norm, ddp::Options options)
      : model(norm),
        replicas(model, transport, *backend,
                 [&] {
                   options.bucket_mb = options.first_bucket_mb = tiny_mb;
                   options.unused = ddp::Unused::allow;
                   return options;
                 }()),
        optimizer(make_optimizer(norm, replicas)),
        ema(model, *backend, {0.5}) {}

  ddp::StepResult step(const ToyBatch& batch) {
    return replicas.step(batch, [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
      const bool side = batch.step % 2 == 1;
      return mse(model.forward(tape, piece.rows(shard.x), side), piece.rows(shard.y));
    });
  }
  /// The loop as a caller writes it; returns the weights of its steps.
  std::vector<double> run(const std::function<ToyBatch(std::uint64_t step)>& batch_of) {
    std::vector<double> weights;
    for (std::uint64_t number = 0;; ++number) {
      const ddp::StepResult result = step(batch_of(number));
      if (result.count == 0) return weights;
      weights.push_back(result.count);
      optimizer->step({.clip = 1});
      ema.update();
    }
  }

  Model model;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
};

std::vector<Inputs> all_inputs() {
  const int ranks = world().size();
  const auto four = [](int, int) { return std::int64_t{4}; };
  return {
      {[](int) { return 3; }, four},                             // even
      {[](int rank) { return 2 + rank; }, four},                 // one more a rank
      {[](int rank) { return rank == 0 ? 0 : 3; }, four},        // rank 0 has nothing at all
      {[ranks](int rank) { return rank + 1 == ranks ? 5 : 0; },  // the last has everything
       [](int, int batch) { return std::int64_t{1 + batch}; }},
      {[](int rank) { return 5 - rank; },  // a last batch that is short
       [](int rank, int batch) { return batch == 4 - rank ? std::int64_t{1} : std::int64_t{6}; }},
      {[](int) { return 0; }, four},  // nobody has anything
  };
}

/// Runs the loop on the ranks and alone; returns both, finished. From step 1 on: in step 0 a batch norm of
/// one sample that is one value a channel would be an error.
void check_loop(Norm norm, const Inputs& inputs, int micro_batches, Cut cut) {
  const int ranks = world().size();
  const auto alone = comm::make_self_communicator();
  Loop many(world(), norm, {.micro_batches = micro_batches});
  Loop one(*alone, norm, {.shards = cut == Cut::whole ? 1 : ranks, .micro_batches = micro_batches});

  const auto weights = many.run([&](std::uint64_t step) {
    return ToyBatch{step + 1, {inputs.of(world().rank(), static_cast<int>(step))}};
  });
  const auto wanted = one.run([&](std::uint64_t step) {
    ToyBatch batch{step + 1, {}};
    std::vector<Tensor> x, y;
    for (int rank = 0; rank < ranks; ++rank) {
      batch.shards.push_back(inputs.of(rank, static_cast<int>(step)));
      x.push_back(batch.shards.back().x);
      y.push_back(batch.shards.back().y);
    }
    if (cut == Cut::whole) batch.shards = {{0, stacked(x), stacked(y)}};
    return batch;
  });

  BOOST_TEST(weights == wanted, boost::test_tools::per_element());
  double samples = 0;
  for (const double weight : weights) samples += weight / 4;
  BOOST_TEST(samples == static_cast<double>(inputs.samples(ranks)));  // each counted once
  if (cut == Cut::as_ranks) {
    check_same_state(many.model, one.model);
    const auto averages = many.ema.tensors(), wanted_averages = one.ema.tensors();
    for (std::size_t i = 0; i < averages.size(); ++i)
      BOOST_TEST(std::memcmp(averages[i].tensor.raw(), wanted_averages[i].tensor.raw(),
                             wanted_averages[i].tensor.bytes()) == 0,
                 "the average of " << averages[i].name << " differs");
  } else {
    check_close_state(many.model, one.model, 1e-4f);
  }
  many.replicas.check_replicas();
}

BOOST_AUTO_TEST_CASE(a_loop_over_uneven_inputs_has_the_bits_of_one_process) {
  for (const Inputs& inputs : all_inputs()) check_loop(Norm::none, inputs, 1, Cut::as_ranks);
}

BOOST_AUTO_TEST_CASE(plain_batch_norm_takes_part_with_empty_shards) {
  for (const Inputs& inputs : all_inputs()) check_loop(Norm::plain, inputs, 1, Cut::as_ranks);
}

BOOST_AUTO_TEST_CASE(shards_in_pieces_may_run_empty_in_any_piece) {
  for (const Inputs& inputs : all_inputs()) {
    check_loop(Norm::none, inputs, 3, Cut::as_ranks);
    check_loop(Norm::plain, inputs, 3, Cut::as_ranks);
  }
}

BOOST_AUTO_TEST_CASE(sync_batch_norm_needs_no_rank_to_stop_early) {
  for (const Inputs& inputs : all_inputs()) check_loop(Norm::sync, inputs, 1, Cut::whole);
}

BOOST_AUTO_TEST_CASE(the_mean_is_over_the_samples_that_there_are) {
  // Rank r brings r samples: dividing by ranks, by shards, or by ranks that have any would all be wrong.
  const Inputs inputs{[](int) { return 1; }, [](int rank, int) { return std::int64_t{rank}; }};
  const auto alone = comm::make_self_communicator();
  Loop many(world(), Norm::none, {}), one(*alone, Norm::none, {});
  std::vector<Tensor> x, y;
  for (int rank = 0; rank < world().size(); ++rank) {
    x.push_back(inputs.of(rank, 0).x);
    y.push_back(inputs.of(rank, 0).y);
  }
  const ddp::StepResult found = many.step({0, {inputs.of(world().rank(), 0)}});
  const ddp::StepResult wanted = one.step({0, {{0, stacked(x), stacked(y)}}});
  const int samples = world().size() * (world().size() - 1) / 2;
  BOOST_TEST(found.count == 4.0 * samples);
  BOOST_TEST(many.replicas.count() == found.count);
  if (samples == 0) return;
  BOOST_TEST(found.mean_loss() == wanted.mean_loss(), boost::test_tools::tolerance(1e-6));
  BOOST_TEST(optim::gradient_norm(many.replicas) == optim::gradient_norm(one.replicas),
             boost::test_tools::tolerance(1e-5));
}

BOOST_AUTO_TEST_CASE(an_error_of_a_rank_with_samples_reaches_those_that_have_none) {
  Loop loop(world(), Norm::plain, {});
  const int busy = world().size() - 1;
  const Inputs inputs{[busy](int rank) { return rank == busy ? 4 : 1; },
                      [](int, int) { return std::int64_t{2}; }};
  const auto batch_of = [&](std::uint64_t step) {
    return ToyBatch{step, {inputs.of(world().rank(), static_cast<int>(step))}};
  };
  loop.step(batch_of(0));
  loop.step(batch_of(1));
  const std::string text = same_error(ExitCode::data, [&] {
    loop.replicas.step(batch_of(2), [&](Tape& tape, const ToyShard& shard) {
      if (shard.x.size(0) > 0) throw DataError("digits.h5 ends here");
      return mse(loop.model.forward(tape, shard.x, true), shard.y);
    });
  });
  BOOST_TEST(text == by(busy) + "digits.h5 ends here");
  BOOST_TEST(loop.step(batch_of(3)).count == 8);
  BOOST_TEST(loop.step(batch_of(4)).count == 0);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
