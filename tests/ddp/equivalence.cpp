// Whatever a program does with one process it may do with many: outputs, hooks, evaluation and whole runs
// give what one process gives.
#include <array>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "ddp/training.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(equivalence, *ranks(1, 2, 3, 4))

using optim::StepOptions;

enum class Algorithm { sgd, adamw };

std::unique_ptr<optim::Optimizer> make_optimizer(Algorithm algorithm, GradientSource& source) {
  if (algorithm == Algorithm::sgd)
    return std::make_unique<optim::Sgd>(
        source, optim::SgdOptions{.lr = 0.02, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
  return std::make_unique<optim::AdamW>(
      source, optim::AdamWOptions{
                  .lr = 0.01, .weight_decay = 0.1, .groups = {{.pattern = "out.*", .lr_factor = 0.5}}});
}

/// A training run on some communicator, with clipping, averages and a frozen parameter.
struct Training : ToyRun {
  Training(comm::GradientTransport& transport, int shards, Algorithm algorithm)
      : ToyRun({.bucket_mb = 0.0002, .first_bucket_mb = tiny_mb, .shards = shards},
               {.transport = &transport,
                .change = [](ModelState& state) { state.params[1]->trainable = false; }}),
        optimizer(make_optimizer(algorithm, replicas)),
        ema(net.state(), *backend, {0.5, 0.9}) {}
  optim::UpdateResult step(std::uint64_t step) {
    ToyRun::step(step);
    const optim::UpdateResult result = optimizer->step({.clip = 0.5, .measure_norm = true});
    ema.update();
    return result;
  }

  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
};

BOOST_AUTO_TEST_CASE(training_has_the_bits_of_one_process_after_every_step) {
  const auto alone = comm::make_self_communicator();
  for (const Algorithm algorithm : {Algorithm::sgd, Algorithm::adamw}) {
    const int shards = 2 * world().size() + 1;
    Training many(world(), shards, algorithm), one(*alone, shards, algorithm);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const optim::UpdateResult found = many.step(step), wanted = one.step(step);
      BOOST_TEST(found.gradient_norm == wanted.gradient_norm);
      check_same_state(many.net.state(), one.net.state());
      const auto averages = many.ema.tensors(), wanted_averages = one.ema.tensors();
      for (std::size_t i = 0; i < averages.size(); ++i)
        BOOST_TEST(same_bits(elements(averages[i].tensor), elements(wanted_averages[i].tensor)),
                   averages[i].rate << " " << averages[i].name);
    }
  }
}

/// All shards of a step as one batch.
ToyShard whole_batch(std::uint64_t step, int shards) {
  std::vector<Tensor> x, y;
  for (int shard = 0; shard < shards; ++shard) {
    x.push_back(toy_shard(step, shard).x);
    y.push_back(toy_shard(step, shard).y);
  }
  return {0, stacked(x), stacked(y)};
}

BOOST_AUTO_TEST_CASE(training_follows_a_plain_loop_over_the_whole_batch) {
  const int shards = world().size() + 1;
  Net many_net, net;
  ModelState state = many_net.state();
  state.params.push_back(&many_net["tied.weight"]);  // listed twice, trained once
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(state, world(), *backend, {.shards = shards});
  LocalGradients gradients(net.state(), *backend);
  optim::AdamW many(replicas, {.lr = 0.01}), one(gradients, {.lr = 0.01});
  Tape tape(*backend);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const ddp::StepResult result =
        replicas.step(toy_batch(step, replicas),
                      [&](Tape& t, const ToyShard& shard) { return plain_loss(many_net, t, shard); });
    many.step();

    gradients.clear();
    tape.begin({.sink = &gradients});
    const Loss loss = plain_loss(net, tape, whole_batch(step, shards));
    backward(loss);
    tape.finish_backward();
    gradients.add_count(loss.read().count);
    one.step();

    BOOST_TEST(result.count == loss.read().count);
    BOOST_TEST(result.loss_sum == loss.read().sum, boost::test_tools::tolerance(1e-5));
    check_close_state(many_net.state(), net.state(), 1e-3f);
  }
}

/// Three outputs. The first two share the parameters of the input layer, the last two those of the tied one;
/// no operation is shared.
std::array<Loss, 3> three_losses(Net& net, Tape& tape, const ToyShard& shard) {
  const auto hidden = [&] {
    return relu(
        linear(tape.constant(shard.x), tape.parameter(net["in.weight"]), tape.parameter(net["in.bias"])));
  };
  const auto tied = [&](const Var& x) {
    return mse(linear(x, tape.parameter(net["tied.weight"])), Tensor::zeros({shard.x.size(0), 7}));
  };
  const Loss first = mse(linear(net.with_nothing(tape, hidden()), tape.parameter(net["out.weight"]),
                                tape.parameter(net["out.bias"])),
                         shard.y);
  const Loss second = tied(hidden());
  const Tensor noise = Tensor::empty({shard.x.size(0), 7});
  fill_normal(noise, {.seed = 8, .shard = static_cast<std::uint32_t>(shard.index)});
  return {first, second, tied(tape.constant(noise))};
}

Loss added(Net& net, Tape& tape, const ToyShard& shard) {
  const auto losses = three_losses(net, tape, shard);
  return append(append(losses[0], losses[1]), losses[2]);
}

/// Walks back from two outputs by itself and leaves the third to the step.
Loss one_by_one(Net& net, Tape& tape, const ToyShard& shard) {
  const auto losses = three_losses(net, tape, shard);
  backward(losses[0]);
  backward(losses[2]);
  return {losses[1].sum, append(append(losses[0], losses[1]), losses[2]).total};
}

BOOST_AUTO_TEST_CASE(several_outputs_may_be_added_or_walked_one_after_another) {
  for (const LossOf& loss_of : {LossOf(added), LossOf(one_by_one)}) {
    const int shards = world().size() + 2;
    Net net;
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(net.state(), world(), *backend,
                               {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards});
    for (std::uint64_t step = 0; step < 3; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard) { return loss_of(net, tape, shard); });
      check_gradients(net, reference(step, shards, 1, loss_of));
    }
  }
  const Gradients together = reference(0, 4, 1, added), apart = reference(0, 4, 1, one_by_one);
  for (std::size_t p = 0; p < together.size(); ++p) check_close(apart[p], together[p], std::to_string(p));
}

/// What a hook saw: values on the way forward, gradients on the way back.
struct Seen {
  std::vector<std::pair<char, std::vector<float>>> calls;
};

/// The network with a hook between its layers, which writes down what passes and doubles the gradient.
Loss hooked_loss(Net& net, Tape& tape, const ToyShard& shard, Seen& seen) {
  const auto hook = [&](const Var& x) {
    seen.calls.emplace_back('f', elements(x.value()));
    return tape.record(x.value(), {&x}, [x, &seen](Tape& t, const Tensor& dy) {
      seen.calls.emplace_back('b', elements(dy));
      const Tensor doubled = t.backend().empty(dy.shape());
      for (std::int64_t i = 0; i < dy.numel(); ++i) doubled.data<float>()[i] = 2 * dy.data<float>()[i];
      t.add_gradient(x, doubled);
    });
  };
  Var h = hook(
      relu(linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1]))));
  h = hook(relu(linear(h, tape.parameter(net.params[2]))));
  return mse(linear(net.with_nothing(tape, h), tape.parameter(net.params[3]), tape.parameter(net.params[4])),
             shard.y);
}

BOOST_AUTO_TEST_CASE(hooks_see_and_change_what_they_do_in_a_local_model) {
  const int shards = 2 * world().size() + 1;
  Net net;
  Seen seen;
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), world(), *backend,
                             {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards});
  for (std::uint64_t step = 0; step < 2; ++step) {
    seen.calls.clear();
    replicas.step(toy_batch(step, replicas),
                  [&](Tape& tape, const ToyShard& shard) { return hooked_loss(net, tape, shard, seen); });
    Seen everything, local;
    check_gradients(net, reference(step, shards, 1, [&](Net& other, Tape& tape, const ToyShard& shard) {
                      const comm::ShardRange mine = replicas.shard_map().block(world().rank());
                      const bool is_mine = mine.first <= shard.index && shard.index < mine.end();
                      return hooked_loss(other, tape, shard, is_mine ? local : everything);
                    }));
    BOOST_TEST((seen.calls == local.calls));
    BOOST_TEST(seen.calls.size() ==
               4u * static_cast<unsigned>(replicas.shard_map().block(world().rank()).count));
  }
}

BOOST_AUTO_TEST_CASE(passes_that_record_nothing_leave_no_gradient_and_training_follows) {
  Net net;
  Counting communicator(world());
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), communicator, *backend, {.shards = 5});
  communicator.sums = communicator.others = 0;
  Tape& tape = replicas.tape();
  for (const bool training : {true, false}) {
    tape.begin({.training = training, .record = false});
    const ToyShard shard = toy_shard(0, 0);
    const Loss loss = plain_loss(net, tape, shard);
    BOOST_TEST(loss.read().count == 24.0);
    BOOST_TEST(!loss.sum.needs_gradient());
    backward(loss);  // from a constant: no way back
    for (const Param& param : net.params) BOOST_TEST(!param.gradient, param.name);
  }
  BOOST_TEST(communicator.sums == 0);
  BOOST_TEST(communicator.others == 0);
  for (std::uint64_t step = 0; step < 2; ++step) {
    replicas.step(toy_batch(step, replicas),
                  [&](Tape& t, const ToyShard& shard) { return plain_loss(net, t, shard); });
    check_gradients(net, reference(step, 5));
  }
}

/// A layer of each kind that might want other ranks.
struct Normed : nn::Module {
  nn::Linear in{*this, "in", 5, 7};
  nn::BatchNorm2d plain{*this, "plain", 7};
  nn::SyncBatchNorm sync{*this, "sync", 7};
  nn::Linear out{*this, "out", 7, 4};
  Var forward(const Var& x) { return out(sync(relu(plain(in(x))))); }
};

BOOST_AUTO_TEST_CASE(evaluation_on_one_rank_alone_waits_for_nobody) {
  Normed net;
  Counting communicator(world());
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net, communicator, *backend);
  const auto step = [&](std::uint64_t number) {
    return replicas.step(toy_batch(number, replicas), [&](Tape& tape, const ToyShard& shard) {
      return mse(net.forward(tape.constant(shard.x)), shard.y);
    });
  };
  step(0);
  const int before = communicator.sums + communicator.others;
  if (world().rank() == world().size() - 1) {
    for (std::uint64_t batch = 0; batch < 3; ++batch) {
      // The layers' communicator is there, as in a step: evaluation does not use it.
      replicas.tape().begin(
          {.training = false, .record = false, .layer_transport = replicas.layer_transport()});
      const ToyShard shard = toy_shard(batch, 9);
      BOOST_TEST(mse(net.forward(replicas.tape().constant(shard.x)), shard.y).read().sum > 0);
    }
  }
  BOOST_TEST(communicator.sums + communicator.others == before);
  BOOST_TEST(step(1).count == world().size() * 24.0);
}

BOOST_AUTO_TEST_CASE(a_layer_without_outputs_takes_part) {
  const int shards = world().size() + 1;
  Net net;
  Param weight = make_param("void.weight", {0, 7}), bias = make_param("void.bias", {0});
  ModelState state = net.state();
  state.params.insert(state.params.begin(), {&weight, &bias});
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(state, world(), *backend,
                             {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards});
  for (std::uint64_t step = 0; step < 2; ++step) {
    const ddp::StepResult result =
        replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
          const Loss nothing =
              mse(linear(tape.constant(Tensor::zeros({6, 7})), tape.parameter(weight), tape.parameter(bias)),
                  Tensor::zeros({6, 0}));
          const Loss loss = plain_loss(net, tape, shard);
          return Loss{loss.sum + nothing.sum, loss.total};
        });
    BOOST_TEST(result.count == shards * 24.0);
    BOOST_TEST((weight.gradient.shape() == Shape{0, 7}));
    BOOST_TEST((bias.gradient.shape() == Shape{0}));
    check_gradients(net, reference(step, shards));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
