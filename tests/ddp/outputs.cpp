// What a model returns and which of its parameters a pass uses are the caller's business: any structure, any
// part of it in the loss, any control flow.
#include <fmt/ranges.h>

#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <tuple>

#include "ddp/training.h"
#include "lockstep/nn/module.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(outputs, *ranks(1, 2, 3, 4))

// --- structures

struct Hidden {
  Var early, late;
};

struct Everything {
  std::tuple<Var, Hidden> pair;
  std::map<std::string, std::vector<Var>> by_name;
  std::optional<Var> absent;
  Tensor plain;  ///< no Var at all
  int number = 0;
};

Everything forward(Net& net, Tape& tape, const Tensor& x) {
  const Var early =
      relu(linear(tape.constant(x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
  const Var late = early + relu(linear(early, tape.parameter(net.params[2])));
  const Var out =
      linear(net.with_nothing(tape, late), tape.parameter(net.params[3]), tape.parameter(net.params[4]));
  return {.pair = {out, {early, late}},
          .by_name = {{"constants", {tape.constant(x)}}, {"outputs", {scale(out, 2), early}}},
          .absent = {},
          .plain = early.value(),
          .number = 3};
}

void check_two_steps(const LossOf& loss_of) {
  const int shards = world().size() + 1;
  ToyRun run(tiny({.shards = shards}));
  for (std::uint64_t step = 0; step < 2; ++step) run.check_step(step, loss_of);
}

BOOST_AUTO_TEST_CASE(a_model_may_return_any_structure) {
  const LossOf through_the_tuple = [](Net& net, Tape& tape, const ToyShard& shard) {
    const Everything all = forward(net, tape, shard.x);
    BOOST_TEST(!all.absent.has_value());
    return mse(std::get<0>(all.pair), shard.y);
  };
  const LossOf through_the_map = [](Net& net, Tape& tape, const ToyShard& shard) {
    const Everything all = forward(net, tape, shard.x);
    const Loss hidden = mse(std::get<1>(all.pair).late, Tensor::zeros(all.plain.shape()));
    const Loss doubled = mse(all.by_name.at("outputs").at(0), shard.y);
    return Loss{hidden.sum + doubled.sum, doubled.total};
  };
  for (const LossOf& loss_of : {through_the_tuple, through_the_map}) {
    check_two_steps(loss_of);
  }
}

BOOST_AUTO_TEST_CASE(values_without_a_way_back_pass_through) {
  // A tensor made in the pass, an output of constants, and a value cut off from what made it.
  const LossOf loss_of = [](Net& net, Tape& tape, const ToyShard& shard) {
    const Everything all = forward(net, tape, shard.x);
    const Var made = tape.constant(Tensor::zeros({shard.x.size(0), 4}));
    BOOST_TEST(!made.needs_gradient());
    const Var of_constants = relu(all.by_name.at("constants").at(0));
    BOOST_TEST(!of_constants.needs_gradient());
    BOOST_TEST(of_constants.value().numel() == shard.x.numel());
    const Var cut = tape.constant(std::get<1>(all.pair).early.value());
    const Loss through_cut =
        mse(linear(cut, tape.parameter(net.params[2])), Tensor::zeros({shard.x.size(0), 7}));
    const Loss loss = mse(std::get<0>(all.pair) + made, shard.y);
    return Loss{loss.sum + through_cut.sum, loss.total};
  };
  check_two_steps(loss_of);
}

BOOST_AUTO_TEST_CASE(outputs_that_the_loss_leaves_out_cost_their_own_parameters_only) {
  const LossOf hidden_alone = [](Net& net, Tape& tape, const ToyShard& shard) {
    const Everything all = forward(net, tape, shard.x);
    return mse(std::get<1>(all.pair).late, Tensor::zeros(all.plain.shape()));
  };
  ToyRun strict(tiny({.shards = 4}));
  const std::string text = same_error(ExitCode::usage, [&] { strict.step(0, hidden_alone); });
  BOOST_TEST(contains(text, "out.weight in no shard; out.bias in no shard; nothing in no shard"));
  BOOST_TEST(!contains(text, "in.weight"));
  ToyRun lenient(tiny({.shards = 4, .unused = ddp::Unused::allow}));
  for (std::uint64_t step = 0; step < 2; ++step) {
    lenient.step(step, hidden_alone);
    const Gradients wanted = reference(step, 4, 1, hidden_alone);
    for (const std::size_t p : {0, 1, 2})
      BOOST_TEST(same_bits(elements(lenient.net.params[p].gradient), wanted[p]), lenient.net.params[p].name);
    for (const std::size_t p : {3, 4, 5})
      BOOST_TEST(!lenient.net.params[p].gradient, lenient.net.params[p].name);
  }
}

BOOST_AUTO_TEST_CASE(an_output_that_nobody_walks_back_from_spoils_no_later_step) {
  const auto ignored_in = [](auto&& ignores) {
    return LossOf([ignores](Net& net, Tape& tape, const ToyShard& shard) {
      const Loss loss = plain_loss(net, tape, shard);
      return ignores(shard.index) ? Loss{tape.constant(Tensor::zeros({})), {}} : loss;
    });
  };
  const int shards = world().size() + 1;
  const LossOf by_all = ignored_in([](int) { return true; });
  const LossOf by_the_first = ignored_in([](int shard) { return shard == 0; });
  ToyRun lenient(tiny({.shards = shards, .unused = ddp::Unused::allow})), strict(tiny({.shards = shards}));

  BOOST_TEST(lenient.step(0, by_all).count == 0);
  for (const Param& param : lenient.net.params) BOOST_TEST(!param.gradient, param.name);
  BOOST_TEST(lenient.step(1, by_the_first).count == (shards - 1) * 24.0);
  check_gradients(lenient.net, reference(1, shards, 1, by_the_first));

  const std::string text = same_error(ExitCode::usage, [&] { strict.step(0, by_the_first); });
  BOOST_TEST(contains(text, "in.weight not in shard 0 (rank 0)"));
  same_error(ExitCode::usage, [&] { strict.step(1, by_all); });

  for (ToyRun* const run : {&lenient, &strict}) run->check_step(2);
}

BOOST_AUTO_TEST_CASE(allowing_unused_parameters_changes_no_bit_where_all_are_used) {
  ToyRun strict(tiny({.shards = 5})), lenient(tiny({.shards = 5, .unused = ddp::Unused::allow}));
  for (std::uint64_t step = 0; step < 3; ++step) {
    strict.check_step(step);
    lenient.check_step(step);
    BOOST_TEST(strict.replicas.plan().hash() == lenient.replicas.plan().hash());
  }
}

// --- control flow

/// Twelve layers of which a pass uses some.
struct Pool {
  static constexpr std::size_t layers = 12;
  Pool() {
    for (std::size_t i = 0; i < layers; ++i)
      params.push_back(make_param("layer" + std::to_string(i), {4, 5}));
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ModelState state() {
    ModelState state;
    for (Param& param : params) state.params.push_back(&param);
    return state;
  }
  Loss loss(Tape& tape, const ToyShard& shard, const std::vector<bool>& uses) {
    Var out = tape.constant(Tensor::zeros({shard.x.size(0), 4}));
    for (std::size_t i = 0; i < layers; ++i) {
      if (uses[i]) out = out + linear(tape.constant(shard.x), tape.parameter(params[i]));
    }
    return mse(out, shard.y);
  }
  std::vector<Param> params;
};

/// Which layers a shard uses in a step: each by the throw of a coin, and every fourth step all or none alike.
std::vector<bool> uses_of(std::uint64_t seed, std::uint64_t step, int shard) {
  const Random random({.seed = seed, .step = step, .shard = static_cast<std::uint32_t>(shard)});
  std::vector<bool> uses;
  for (std::size_t i = 0; i < Pool::layers; ++i)
    uses.push_back(step % 4 == 3 ? i % 2 == 0 : random.uniform(i) < 0.3f);
  return uses;
}

std::uint64_t common_seed() {
  std::uint64_t seed = std::random_device{}();
  world().broadcast(&seed, sizeof seed, 0);
  return seed;
}

BOOST_AUTO_TEST_CASE(random_control_flow_is_known_exactly) {
  const std::uint64_t seed = common_seed();
  const int shards = 2 * world().size() + 1;
  Pool pool;
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(
      pool.state(), world(), *backend,
      {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards, .unused = ddp::Unused::allow});
  BOOST_TEST_CONTEXT("seed " << seed) for (std::uint64_t step = 0; step < 12; ++step) {
    replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
      return pool.loss(tape, shard, uses_of(seed, step, shard.index));
    });
    Pool other;
    for (std::size_t i = 0; i < Pool::layers; ++i) {
      bool used = false;
      for (int shard = 0; shard < shards; ++shard) used = used || uses_of(seed, step, shard)[i];
      BOOST_TEST(bool(pool.params[i].gradient) == used, "layer " << i << " in step " << step);
      if (!used) continue;
      const auto gradient_of = [&](int shard) {
        LocalGradients sink(other.state(), *backend);
        Tape tape(*backend);
        tape.begin({.sink = &sink});
        backward(other.loss(tape, toy_shard(step, shard), uses_of(seed, step, shard)));
        tape.finish_backward();
        std::vector<float> gradient = elements(other.params[i].gradient);
        gradient.resize(20);
        sink.clear();
        return gradient;
      };
      const auto wanted =
          comm::fold_tree({0, shards}, gradient_of, [](std::vector<float> a, const std::vector<float>& b) {
            for (std::size_t e = 0; e < a.size(); ++e) a[e] += b[e];
            return a;
          });
      BOOST_TEST(same_bits(elements(pool.params[i].gradient), wanted), "layer " << i << " in step " << step);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_error_counts_exactly_who_missed_what) {
  const std::uint64_t seed = common_seed();
  const int shards = world().size() + 2;
  Pool pool;
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(pool.state(), world(), *backend, {.shards = shards});
  const comm::ShardMap map(shards, world().size());
  BOOST_TEST_CONTEXT("seed " << seed) for (std::uint64_t step = 0; step < 4; ++step) {
    // One layer is missed at random, the others are always used: the text can be spelled out.
    const std::size_t missing = (seed + step) % Pool::layers;
    const auto uses = [&](int shard) {
      std::vector<bool> all(Pool::layers, true);
      all[missing] = shard != 0 && uses_of(seed, step, shard)[missing];
      return all;
    };
    std::vector<int> missed, ranks;
    for (int shard = 0; shard < shards; ++shard) {
      if (uses(shard)[missing]) continue;
      missed.push_back(shard);
      if (ranks.empty() || ranks.back() != map.owner(shard)) ranks.push_back(map.owner(shard));
    }
    const std::string who =
        static_cast<int>(missed.size()) == shards
            ? "in no shard"
            : fmt::format("not in shard{} {} (rank{} {})", missed.size() == 1 ? "" : "s",
                          fmt::join(missed, ", "), ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
    const std::string text = same_error(ExitCode::usage, [&] {
      replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
        return pool.loss(tape, shard, uses(shard.index));
      });
    });
    BOOST_TEST(contains(text, fmt::format("gradient: layer{} {};", missing, who)), text << " lacks " << who);
  }
}

// --- frozen, left out

BOOST_AUTO_TEST_CASE(frozen_parameters_may_differ_in_use_and_travel_never) {
  Net net;
  nn::freeze(net.state(), std::vector<std::string>{"tied.*", "nothing"});
  Counting communicator(world());
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), communicator, *backend,
                             {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = 4});
  for (const auto& gradient : replicas.plan().gradients())
    BOOST_TEST((gradient.name != "tied.weight" && gradient.name != "nothing"));
  for (std::uint64_t step = 0; step < 2; ++step) {
    communicator.sums = 0;
    // Even shards use the frozen layer, odd ones do not: that is no missing gradient.
    replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
      return shard.index % 2 == 0 ? plain_loss(net, tape, shard) : shallow(net, tape, shard);
    });
    BOOST_TEST(communicator.sums == 4);
    BOOST_TEST(!net["tied.weight"].gradient);
    BOOST_TEST(!net["nothing"].gradient);
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_left_out_of_the_model_is_neither_compared_nor_sent_nor_trained_by_mistake) {
  Net net;
  Param aside = make_param("aside", {7, 7}, static_cast<std::uint64_t>(world().rank() + 5));
  const std::vector<float> before = elements(aside.value);
  aside.trainable = false;
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), world(), *backend,
                             {.shards = 4, .unused = ddp::Unused::allow, .check_every = 1});
  BOOST_TEST(same_bits(elements(aside.value), before));  // this rank's own, still
  const auto loss_of = [&](Tape& tape, const ToyShard& shard) {
    const Var h =
        relu(linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
    return mse(linear(linear(h, tape.parameter(aside)), tape.parameter(net.params[3]),
                      tape.parameter(net.params[4])),
               shard.y);
  };
  for (std::uint64_t step = 0; step < 3; ++step) replicas.step(toy_batch(step, replicas), loss_of);
  BOOST_TEST(!aside.gradient);
  BOOST_TEST(same_bits(elements(aside.value), before));
  aside.trainable = true;  // now its gradient would be lost: that is said
  BOOST_TEST(contains(same_error(ExitCode::usage, [&] { replicas.step(toy_batch(3, replicas), loss_of); }),
                      "aside was not in the model, or not trainable"));
  replicas.tape().begin({});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
