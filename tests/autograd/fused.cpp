// Functions in one go: the bits of the plain functions they stand for, in values and in every gradient.
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(fused)

using Vars = std::vector<Var>;
using ops::Activation;

/// The output, then the gradient of every input.
std::vector<Tensor> run(const Function& function, const std::vector<Tensor>& inputs, const Pass& pass,
                        std::size_t constants) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin(pass);
  Vars vars;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    vars.push_back(i < constants ? tape.constant(inputs[i]) : tape.input(inputs[i]));
  const Var y = to_channel_block(function(tape, vars), 1);
  std::vector<Tensor> results{y.value()};
  tape.backward(y, normal_tensor(y.shape(), 99));
  for (std::size_t i = constants; i < inputs.size(); ++i) results.push_back(tape.gradient(vars[i]));
  return results;
}

/// With the first `constants` inputs as constants.
void check_same(const Function& fused, const Function& apart, const std::vector<Tensor>& inputs,
                const Pass& pass = {}, std::size_t constants = 0) {
  const auto have = run(fused, inputs, pass, constants), want = run(apart, inputs, pass, constants);
  for (std::size_t i = 0; i < want.size(); ++i) {
    BOOST_TEST_CONTEXT((i == 0 ? "the value" : "a gradient") << ", number " << i) {
      BOOST_REQUIRE(static_cast<bool>(have[i]) == static_cast<bool>(want[i]));
      if (!want[i]) continue;
      BOOST_REQUIRE(have[i].shape() == want[i].shape());
      BOOST_TEST((want[i].bytes() == 0 || std::memcmp(have[i].raw(), want[i].raw(), want[i].bytes()) == 0));
    }
  }
}

struct Statistics {
  explicit Statistics(std::int64_t channels)
      : mean(normal_tensor({channels}, 21)), var(normal_tensor({channels}, 22)) {
    for (std::int64_t c = 0; c < channels; ++c) var.data<float>()[c] = 0.5f + std::abs(var.data<float>()[c]);
  }
  BatchNormOptions options() const { return {.running_mean = mean, .running_var = var}; }
  Tensor mean, var;
};

BOOST_AUTO_TEST_SUITE(fused)

BOOST_AUTO_TEST_CASE(batch_norm_and_relu) {
  const Statistics of(5);
  for (const bool training : {true, false}) {
    for (const Shape& shape : {Shape{4, 5, 3, 7}, Shape{9, 5}, Shape{0, 5, 2, 2}}) {
      const std::vector<Tensor> inputs{normal_tensor(shape, 1), normal_tensor({5}, 2), normal_tensor({5}, 3)};
      const auto one_go = [&](Tape&, const Vars& v) {
        return batch_norm_relu(v[0], v[1], v[2], {}, of.options());
      };
      const auto apart = [&](Tape&, const Vars& v) {
        return relu(batch_norm(v[0], v[1], v[2], of.options()));
      };
      check_same(one_go, apart, inputs, {.training = training});
      check_same(one_go, apart, inputs, {.training = training}, 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(batch_norm_and_relu_in_channel_blocks) {
  const Statistics of(5);
  const std::vector<Tensor> inputs{normal_tensor({3, 5, 6, 6}, 1), normal_tensor({5}, 2),
                                   normal_tensor({5}, 3), normal_tensor({3, 5, 6, 6}, 4)};
  check_same(
      [&](Tape&, const Vars& v) {
        return batch_norm_relu(to_channel_block(v[0], 8), v[1], v[2], v[3], of.options());
      },
      [&](Tape&, const Vars& v) {
        return relu(batch_norm(to_channel_block(v[0], 8), v[1], v[2], of.options()) + v[3]);
      },
      inputs);
}

// The gradients of h arrive from two or three sides, as those of a residual network's blocks do.
BOOST_AUTO_TEST_CASE(batch_norm_with_a_shortcut_and_relu) {
  const Statistics of(4);
  for (const int uses : {1, 2, 3}) {
    const auto spread = [uses](const Var& h) {
      Var sum = h;
      for (int use = 1; use < uses; ++use) sum = scale(h, 0.3f * static_cast<float>(use)) + sum;
      return sum;
    };
    for (const bool has_shortcut : {true, false}) {
      const std::vector<Tensor> inputs{normal_tensor({3, 4, 5, 5}, 1), normal_tensor({4}, 2),
                                       normal_tensor({4}, 3), normal_tensor({3, 4, 5, 5}, 4)};
      for (const std::size_t constants : {0u, 1u}) {
        check_same(
            [&](Tape&, const Vars& v) {
              return spread(batch_norm_relu(v[0], v[1], v[2], has_shortcut ? v[3] : Var{}, of.options()));
            },
            [&](Tape&, const Vars& v) {
              const Var normal = batch_norm(v[0], v[1], v[2], of.options());
              return spread(relu(has_shortcut ? normal + v[3] : normal));
            },
            inputs, {}, constants);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_shortcut_that_is_the_input_itself) {
  const Statistics of(4);
  check_same([&](Tape&, const Vars& v) { return batch_norm_relu(v[0], v[1], v[2], v[0], of.options()); },
             [&](Tape&, const Vars& v) { return relu(batch_norm(v[0], v[1], v[2], of.options()) + v[0]); },
             {normal_tensor({3, 4, 5, 5}, 1), normal_tensor({4}, 2), normal_tensor({4}, 3)});
}

BOOST_AUTO_TEST_CASE(a_sum_and_its_layer_norm) {
  const std::vector<Tensor> inputs{normal_tensor({2, 7, 6}, 1), normal_tensor({2, 7, 6}, 2),
                                   normal_tensor({6}, 3), normal_tensor({6}, 4)};
  for (const std::size_t constants : {0u, 1u, 2u}) {
    check_same(
        [](Tape&, const Vars& v) {
          const auto [sum, norm] = add_layer_norm(v[0], v[1], v[2], v[3], 1e-5f);
          return scale(sum, 2) + norm;
        },
        [](Tape&, const Vars& v) {
          const Var sum = v[0] + v[1];
          return scale(sum, 2) + layer_norm(sum, v[2], v[3], 1e-5f);
        },
        inputs, {}, constants);
  }
}

BOOST_AUTO_TEST_CASE(a_layer_norm_whose_input_has_a_gradient_already) {
  check_gradients(
      [](Tape&, const Vars& x) {
        const Var h = scale(x[0], 0.7f);
        return layer_norm(h, x[1], x[2], 1e-5f) + scale(h, 1.3f);
      },
      {normal_tensor({3, 5}, 1), normal_tensor({5}, 2), normal_tensor({5}, 3)});
}

BOOST_AUTO_TEST_CASE(a_layer_and_its_activation) {
  for (const Activation kind :
       {Activation::relu, Activation::silu, Activation::gelu_erf, Activation::gelu_tanh}) {
    const auto act = [kind](const Var& x) {
      return kind == Activation::relu       ? relu(x)
             : kind == Activation::silu     ? silu(x)
             : kind == Activation::gelu_erf ? gelu_erf(x)
                                            : gelu_tanh(x);
    };
    const std::vector<Tensor> inputs{normal_tensor({2, 5, 6}, 1), normal_tensor({8, 6}, 2),
                                     normal_tensor({8}, 3), normal_tensor({7, 8}, 4), normal_tensor({7}, 5)};
    for (const std::size_t constants : {0u, 1u, 2u, 3u}) {
      check_same([&](Tape&, const Vars& v) { return linear(v[0], v[1], v[2], kind); },
                 [&](Tape&, const Vars& v) { return act(linear(v[0], v[1], v[2])); },
                 {inputs.begin(), inputs.begin() + 3}, {}, std::min<std::size_t>(constants, 2));
      check_same([&](Tape&, const Vars& v) { return feed_forward(v[0], v[1], v[2], kind, v[3], v[4]); },
                 [&](Tape&, const Vars& v) { return linear(act(linear(v[0], v[1], v[2])), v[3], v[4]); },
                 inputs, {}, constants);
      check_same([&](Tape&, const Vars& v) { return feed_forward(v[0], v[1], {}, kind, v[3], {}); },
                 [&](Tape&, const Vars& v) { return linear(act(linear(v[0], v[1])), v[3]); }, inputs, {},
                 constants);
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_adaptive_group_norms) {
  const std::vector<Tensor> inputs{normal_tensor({2, 4, 3, 2}, 1), normal_tensor({4}, 2),
                                   normal_tensor({4}, 3), normal_tensor({2, 4}, 4), normal_tensor({2, 8}, 5)};
  for (const int block : {1, 4, 8}) {
    for (const bool has_silu : {false, true}) {
      check_gradients(
          [=](Tape&, const Vars& v) {
            const Var x = to_channel_block(v[0], block);
            return adaptive_group_norm(x, 2, v[1], v[2], 1e-5f, {v[3], v[4], has_silu}) + scale(x, 0.7f);
          },
          inputs);
    }
  }
}

BOOST_AUTO_TEST_CASE(evaluations_keep_nothing_and_have_the_same_values) {
  const Statistics of(4);
  const std::vector<Tensor> images{normal_tensor({3, 4, 5, 5}, 1), normal_tensor({4}, 2),
                                   normal_tensor({4}, 3)};
  check_same([&](Tape&, const Vars& v) { return batch_norm_relu(v[0], v[1], v[2], {}, of.options()); },
             [&](Tape&, const Vars& v) { return relu(batch_norm(v[0], v[1], v[2], of.options())); }, images,
             {.training = false, .record = false});
  const std::vector<Tensor> rows{normal_tensor({3, 4}, 1), normal_tensor({5, 4}, 2), normal_tensor({5}, 3)};
  check_same([&](Tape&, const Vars& v) { return linear(v[0], v[1], v[2], Activation::gelu_tanh); },
             [&](Tape&, const Vars& v) { return gelu_tanh(linear(v[0], v[1], v[2])); }, rows,
             {.training = false, .record = false});
}

BOOST_AUTO_TEST_CASE(shapes_that_do_not_fit_are_usage_errors) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const auto input = [&](Shape shape) { return tape.input(normal_tensor(shape, 1)); };
  const Statistics of(3);
  BOOST_CHECK_THROW(batch_norm_relu(input({2, 3}), input({3}), input({3}), input({3, 3}), of.options()),
                    UsageError);
  BOOST_CHECK_THROW(batch_norm_relu(input({2, 4}), input({3}), input({3}), {}, of.options()), UsageError);
  BOOST_CHECK_THROW(add_layer_norm(input({2, 3}), input({3, 3}), input({3}), input({3}), 1e-5f), UsageError);
  BOOST_CHECK_THROW(linear(input({2, 3}), input({4, 5}), {}, Activation::relu), UsageError);
  BOOST_CHECK_THROW(feed_forward(input({2, 3}), input({4, 3}), {}, Activation::relu, input({3, 5}), {}),
                    UsageError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
