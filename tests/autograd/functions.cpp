// Differentiable functions: the gradients of what golden cases (golden_ops.cpp, nn/golden_layers.cpp) lack,
// against differences; their results where they are known, their errors.
#include "lockstep/autograd/functions.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "autograd/gradient_check.h"
#include "lockstep/base/random.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(functions)

using Vars = std::vector<Var>;

Tensor indices(Shape shape, std::vector<std::int64_t> values) {
  Tensor tensor = Tensor::empty(shape, DType::int64);
  std::copy(values.begin(), values.end(), tensor.data<std::int64_t>());
  return tensor;
}

BOOST_AUTO_TEST_SUITE(gradients)

BOOST_AUTO_TEST_CASE(of_add_in_two_layouts) {
  check_gradients([](Tape&, const Vars& x) { return add(to_channel_block(x[0], 8), x[1]); },
                  {normal_tensor({2, 3, 2, 2}, 1), normal_tensor({2, 3, 2, 2}, 2)});
}

BOOST_AUTO_TEST_CASE(of_dropout) {
  check_gradients([](Tape&, const Vars& x) { return dropout(x[0], 0.4f, purpose_of("test")); },
                  {normal_tensor({6, 9}, 1)});
}

BOOST_AUTO_TEST_CASE(of_layouts_and_shapes) {
  check_gradients(
      [](Tape&, const Vars& x) { return flatten(to_channel_block(to_channel_block(x[0], 8), 16), 1); },
      {normal_tensor({2, 3, 2, 2}, 1)});
  check_gradients([](Tape&, const Vars& x) { return reshape(x[0], {3, 4}); }, {normal_tensor({2, 6}, 1)});
}

BOOST_AUTO_TEST_CASE(of_linear_without_outputs_or_inputs) {
  check_gradients([](Tape&, const Vars& x) { return linear(x[0], x[1], x[2]); },
                  {normal_tensor({2, 3, 4}, 1), normal_tensor({0, 4}, 2), normal_tensor({0}, 3)});
  check_gradients([](Tape&, const Vars& x) { return linear(x[0], x[1], x[2]); },
                  {normal_tensor({2, 3, 0}, 1), normal_tensor({5, 0}, 2), normal_tensor({5}, 3)});
  check_gradients([](Tape&, const Vars& x) { return linear(relu(linear(x[0], x[1])), x[2], x[3]); },
                  {normal_tensor({7, 64}, 1), normal_tensor({0, 64}, 2), normal_tensor({256, 0}, 3),
                   normal_tensor({256}, 4)});
}

BOOST_AUTO_TEST_CASE(of_conv2d_in_channel_blocks_and_back) {
  check_gradients(
      [](Tape&, const Vars& x) {
        return flatten(conv2d(relu(conv2d(x[0], x[1], {}, {.padding = 1})), x[2], {}, {.padding = 1}), 1);
      },
      {normal_tensor({1, 3, 4, 4}, 1), normal_tensor({16, 3, 3, 3}, 2), normal_tensor({2, 16, 3, 3}, 3)},
      {.tolerance = 3e-2});  // the relu's kinks are anywhere
}

BOOST_AUTO_TEST_CASE(of_pooling) {
  const auto blocked_or_not = [](const auto& function) {
    for (const int block : {1, 8})
      check_gradients([&](Tape&, const Vars& x) { return function(to_channel_block(x[0], block)); },
                      {spaced_tensor({2, 3, 4, 6}, 1)});
  };
  blocked_or_not([](const Var& x) { return max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); });
  blocked_or_not([](const Var& x) { return avg_pool2d(x, {.kernel = 2, .stride = 2}); });
  blocked_or_not([](const Var& x) { return global_avg_pool2d(x); });
  blocked_or_not([](const Var& x) { return upsample_nearest2d(x, 2); });
}

BOOST_AUTO_TEST_CASE(of_positions_fewer_than_the_context) {
  check_gradients([](Tape&, const Vars& x) { return add_positions(x[0], x[1]); },
                  {normal_tensor({2, 3, 4}, 1), normal_tensor({5, 4}, 2)});
}

BOOST_AUTO_TEST_CASE(of_attention) {
  for (const bool causal : {false, true}) {
    check_gradients([causal](Tape&, const Vars& x) { return attention(x[0], x[1], x[2], 2, causal); },
                    {normal_tensor({2, 3, 4}, 1), normal_tensor({2, 3, 4}, 2), normal_tensor({2, 3, 4}, 3)});
    for (const HeadOrder order : {HeadOrder::thirds, HeadOrder::heads})
      check_gradients([causal, order](Tape&, const Vars& x) { return attention(x[0], 2, causal, order); },
                      {normal_tensor({2, 3, 12}, 1)});
  }
}

BOOST_AUTO_TEST_CASE(of_group_norm) {
  for (const int block : {1, 8})
    check_gradients(
        [block](Tape&, const Vars& x) {
          return group_norm(to_channel_block(x[0], block), 2, x[1], x[2], 1e-5f);
        },
        {normal_tensor({2, 4, 2, 3}, 1), normal_tensor({4}, 2), normal_tensor({4}, 3)});
}

BOOST_AUTO_TEST_CASE(of_batch_norm_in_training_and_evaluation) {
  Tensor mean = normal_tensor({3}, 5), variance = Tensor::empty({3});
  std::fill_n(variance.data<float>(), 3, 1.5f);
  for (const bool training : {true, false}) {
    for (const Shape& shape : {Shape{3, 3, 2, 2}, Shape{6, 3}})
      check_gradients(
          [&](Tape&, const Vars& x) {
            return batch_norm(x[0], x[1], x[2], {.running_mean = mean, .running_var = variance});
          },
          {normal_tensor(shape, 1), normal_tensor({3}, 2), normal_tensor({3}, 3)}, {.training = training});
  }
}

BOOST_AUTO_TEST_SUITE_END()

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  Fixture() { tape.begin({}); }
  Var input(Shape shape, std::uint64_t seed = 1) { return tape.input(normal_tensor(shape, seed)); }
};

BOOST_FIXTURE_TEST_SUITE(functions, Fixture)

BOOST_AUTO_TEST_CASE(packed_attention_equals_three_inputs) {
  const Tensor qkv = normal_tensor({2, 5, 12}, 1);
  std::array<Tensor, 3> parts;
  for (std::int64_t k = 0; k < 3; ++k) {
    parts[static_cast<std::size_t>(k)] = Tensor::empty({2, 5, 4});
    for (std::int64_t row = 0; row < 10; ++row)
      std::copy_n(qkv.data<float>() + row * 12 + k * 4, 4,
                  parts[static_cast<std::size_t>(k)].data<float>() + row * 4);
  }
  const Tensor packed = attention(tape.input(qkv), 2, true).value();
  const Tensor apart =
      attention(tape.input(parts[0]), tape.input(parts[1]), tape.input(parts[2]), 2, true).value();
  for (std::int64_t i = 0; i < packed.numel(); ++i)
    BOOST_TEST(packed.data<float>()[i] == apart.data<float>()[i], boost::test_tools::tolerance(1e-5f));
}

BOOST_AUTO_TEST_CASE(attention_reads_heads_in_either_order) {
  const Var by_head = input({2, 5, 12}),
            thirds = reshape(permute(reshape(by_head, {2, 5, 2, 3, 2}), {0, 1, 3, 2, 4}), {2, 5, 12});
  const Tensor a = attention(by_head, 2, true, HeadOrder::heads).value(),
               b = attention(thirds, 2, true).value();
  BOOST_TEST(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

BOOST_AUTO_TEST_CASE(dropout_draws_by_pass_and_purpose_and_is_off_in_evaluation) {
  const Tensor ones = Tensor::empty({1000});
  std::fill_n(ones.data<float>(), 1000, 1.0f);
  const auto draw = [&](const Pass& pass, const char* purpose) {
    tape.begin(pass);
    const Tensor y = dropout(tape.constant(ones), 0.25f, purpose_of(purpose)).value();
    return std::vector<float>(y.data<float>(), y.data<float>() + 1000);
  };
  const Pass pass{.seed = 1, .step = 2, .shard = 3};
  const auto first = draw(pass, "a");
  BOOST_TEST((draw(pass, "a") == first));
  BOOST_TEST((draw(pass, "b") != first));
  BOOST_TEST((draw({.seed = 2, .step = 2, .shard = 3}, "a") != first));
  BOOST_TEST((draw({.seed = 1, .step = 3, .shard = 3}, "a") != first));
  BOOST_TEST((draw({.seed = 1, .step = 2, .shard = 4}, "a") != first));
  BOOST_TEST((draw({.training = false}, "a") == std::vector<float>(1000, 1.0f)));
  const double mean = std::accumulate(first.begin(), first.end(), 0.0) / 1000;
  BOOST_TEST(std::abs(mean - 1) < 0.1);  // five deviations
}

BOOST_AUTO_TEST_CASE(a_dropout_in_an_adaptive_norm_has_the_bits_of_one_after_it) {
  const auto bits_of = [&](DType compute, bool fused) {
    tape.begin({.seed = 4, .compute = compute});
    const auto images = [&](std::uint64_t seed) {
      return backend->in_type(normal_tensor({2, 8, 3, 5}, seed), compute);
    };
    const Var x = tape.input(images(1)), weight = tape.input(normal_tensor({8}, 2));
    const Var norm = adaptive_group_norm(x, 2, weight, weight, 1e-5f,
                                         {.silu = true, .dropout = fused ? 0.3f : 0, .dropout_purpose = 9}),
              y = fused ? norm : dropout(norm, 0.3f, 9);
    tape.backward(y, images(3));
    tape.finish_backward();
    return std::array{y.value(), tape.gradient(x), tape.gradient(weight)};
  };
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    const auto fused = bits_of(compute, true), apart = bits_of(compute, false);
    for (std::size_t i = 0; i < fused.size(); ++i)
      BOOST_TEST(std::memcmp(fused[i].raw(), apart[i].raw(), fused[i].bytes()) == 0);
  }
}

BOOST_AUTO_TEST_CASE(losses_are_sums_with_weights) {
  const Tensor targets = indices({3}, {1, -100, 0});
  const Tensor logits = Tensor::zeros({3, 4});
  const Loss loss = cross_entropy(tape.input(logits), targets);
  BOOST_TEST(loss.read().count == 2);
  BOOST_TEST(loss.read().sum == 2 * std::log(4.0), boost::test_tools::tolerance(1e-6));
  BOOST_TEST(*loss.sum.value().data<float>() == static_cast<float>(loss.read().sum));
}

BOOST_AUTO_TEST_CASE(logits_become_their_gradient_unless_somebody_holds_them) {
  const Tensor targets = indices({3}, {1, 3, 0});
  enum How { left, held, given_away };
  std::vector<float> gradients[3];
  for (const How how : {left, held, given_away}) {
    const Var x = tape.input(normal_tensor({3, 4}, 1));
    const void *given = nullptr, *logits_at = nullptr;
    Var kept;
    const auto loss = [&] {
      Tensor value = tape.backend().empty(x.shape());
      copy_elements(x.value(), value);
      Var logits = tape.record(std::move(value), {&x}, [x, &given](Tape& t, const Tensor& dy) {
        given = dy.raw();
        t.add_gradient(x, dy);
      });
      logits_at = logits.value().raw();
      if (how == held) kept = logits;
      return how == given_away ? cross_entropy(std::move(logits), targets, {.label_smoothing = 0.1f})
                               : cross_entropy(logits, targets, {.label_smoothing = 0.1f});
    }();
    backward(loss, 0.37f);
    BOOST_TEST((given == logits_at) == (how != held));
    if (how == held) BOOST_TEST(std::memcmp(kept.value().raw(), x.value().raw(), x.value().bytes()) == 0);
    const float* const dx = tape.gradient(x).data<float>();
    gradients[how].assign(dx, dx + 12);
  }
  BOOST_TEST(gradients[left] == gradients[held]);
  BOOST_TEST(gradients[left] == gradients[given_away]);
}

BOOST_AUTO_TEST_CASE(backward_of_a_loss_scales_by_its_factor) {
  const Var x = tape.input(normal_tensor({2, 3}, 1));
  const Tensor target = normal_tensor({2, 3}, 2);
  backward(mse(x, target), 0.5f);
  for (std::int64_t i = 0; i < 6; ++i)
    BOOST_TEST(tape.gradient(x).data<float>()[i] == x.value().data<float>()[i] - target.data<float>()[i],
               boost::test_tools::tolerance(1e-5f));
}

BOOST_AUTO_TEST_CASE(a_batch_of_zero_goes_through_everything) {
  const Var w = input({4, 2, 3, 3}), scale_and_shift = input({4}, 2), head = input({5, 4}, 3);
  const Tensor mean = Tensor::zeros({4}), variance = Tensor::zeros({4});
  const Var x = tape.input(Tensor::empty({0, 2, 6, 6}));
  Var h = conv2d(x, w, {}, {.padding = 1});
  h = relu(batch_norm(h, scale_and_shift, scale_and_shift, {.running_mean = mean, .running_var = variance}));
  h = group_norm(h, 2, scale_and_shift, scale_and_shift, 1e-5f);
  h = upsample_nearest2d(avg_pool2d(max_pool2d(h, {2, 2, 0}), {3, 1, 1}), 2);
  h = dropout(flatten(global_avg_pool2d(h), 1), 0.5f, 1);
  const Loss loss = cross_entropy(linear(layer_norm(h, scale_and_shift, scale_and_shift, 1e-5f), head),
                                  Tensor::empty({0}, DType::int64));
  BOOST_TEST(loss.read().sum == 0);
  BOOST_TEST(loss.read().count == 0);
  backward(loss);
  BOOST_TEST((tape.gradient(x).shape() == x.shape()));
  for (const Var& var : {w, scale_and_shift, head}) {
    BOOST_REQUIRE(tape.gradient(var));
    for (std::int64_t i = 0; i < var.value().numel(); ++i)
      BOOST_TEST(tape.gradient(var).data<float>()[i] == 0);
  }
}

BOOST_AUTO_TEST_CASE(an_empty_batch_goes_through_attention) {
  const Var qkv = tape.input(Tensor::empty({0, 3, 12}));
  const Var y = attention(qkv, 2, true);
  BOOST_TEST((y.shape() == Shape{0, 3, 4}));
  tape.backward(y, Tensor::empty({0, 3, 4}));
  BOOST_TEST((tape.gradient(qkv).shape() == qkv.shape()));
}

BOOST_AUTO_TEST_CASE(a_frozen_scale_leaves_the_shift_its_gradient) {
  const Tensor x = normal_tensor({3, 4}, 1), weight = normal_tensor({4}, 2), bias = normal_tensor({4}, 3);
  const Tensor dy = normal_tensor({3, 4}, 4);
  const auto gradients_of_bias = [&](bool frozen) {
    tape.begin({});
    const Var shift = tape.input(bias);
    tape.backward(
        layer_norm(tape.input(x), frozen ? tape.constant(weight) : tape.input(weight), shift, 1e-5f), dy);
    const float* const found = tape.gradient(shift).data<float>();
    return std::vector<float>(found, found + 4);
  };
  BOOST_TEST(gradients_of_bias(true) == gradients_of_bias(false), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_usage_errors) {
  BOOST_CHECK_THROW(input({2, 3}) + input({3, 2}), UsageError);
  BOOST_CHECK_THROW(linear(input({2, 3}), input({4, 5})), UsageError);
  BOOST_CHECK_THROW(conv2d(input({1, 3, 4, 4}), input({2, 2, 3, 3})), UsageError);
  BOOST_CHECK_THROW(conv2d(input({1, 2, 2, 2}), input({2, 2, 3, 3})), UsageError);
  BOOST_CHECK_THROW(conv2d(input({1, 3, 4, 4}), input({2, 1, 3, 3}), {}, {.groups = 3}), UsageError);
  BOOST_CHECK_THROW(max_pool2d(input({2, 3}), {}), UsageError);
  BOOST_CHECK_THROW(attention(input({1, 2, 9}), 2, true), UsageError);
  BOOST_CHECK_THROW(add_positions(input({1, 4, 2}), input({3, 2})), UsageError);
  BOOST_CHECK_THROW(layer_norm(input({2, 3}), input({4}), input({4}), 1e-5f), UsageError);
  BOOST_CHECK_THROW(group_norm(input({1, 3, 2, 2}), 2, input({3}), input({3}), 1e-5f), UsageError);
  BOOST_CHECK_THROW(cross_entropy(input({2, 3}), indices({3}, {0, 0, 0})), UsageError);
  BOOST_CHECK_THROW(mse(input({2}), normal_tensor({3}, 1)), UsageError);
  BOOST_CHECK_THROW(dropout(input({2}), 1.0f, 0), UsageError);
  BOOST_CHECK_THROW(flatten(input({2}), 1), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
