// Losses of elements and their targets: sums and counts, how losses are combined, and what they take and tell
// of each sample.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/kernels/backend.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {

struct OnATape {
  OnATape() { tape.begin({}); }
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
};

using LossOf = Loss (*)(const Var&, const Tensor&, const PerSample&);

Loss smooth_by_half(const Var& x, const Tensor& target, const PerSample& per_sample) {
  return smooth_l1(x, target, 0.5f, per_sample);
}

constexpr LossOf all_losses[] = {mse, l1, smooth_by_half, bce_with_logits};

Tensor floats(std::initializer_list<float> values) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

BOOST_FIXTURE_TEST_SUITE(losses, OnATape)

BOOST_AUTO_TEST_CASE(their_gradients_agree_with_differences) {
  // Away from the kinks of l1, and of smooth_l1's second derivative.
  const Tensor x = floats({-2, -0.8f, -0.3f, 0.2f, 0.25f, 0.75f, 1.5f, 3}).reshape({4, 2}),
               target = Tensor::zeros({4, 2}), weights = floats({0.5f, 2, 1, 0});
  for (const LossOf loss : all_losses) {
    check_gradients([&](Tape&, const std::vector<Var>& in) { return loss(in[0], target, {}).sum; }, {x});
    check_gradients([&](Tape&, const std::vector<Var>& in) { return loss(in[0], target, {weights}).sum; },
                    {x});
  }
}

BOOST_AUTO_TEST_CASE(the_count_is_the_elements) {
  for (const LossOf loss : all_losses) {
    const Loss found = loss(tape.input(normal_tensor({3, 4}, 1)), normal_tensor({3, 4}, 2), {});
    BOOST_TEST(found.read().count == 12);
    BOOST_TEST(*found.sum.value().data<float>() == static_cast<float>(found.read().sum));
  }
}

BOOST_AUTO_TEST_CASE(weights_multiply_samples_and_values_are_their_means_before) {
  for (const LossOf loss : all_losses) {
    const Var x = tape.input(normal_tensor({3, 2, 5}, 1));
    const Tensor target = normal_tensor({3, 2, 5}, 2);
    Tensor values;
    const Loss found = loss(x, target, {floats({2, 0, 0.5f}), &values});
    BOOST_TEST(values.shape() == Shape({3}));
    const float* const v = values.data<float>();
    BOOST_TEST(found.read().sum == 10.0 * (2 * v[0] + 0.5 * v[2]), boost::test_tools::tolerance(1e-5));
    BOOST_TEST(found.read().count == 30);
    for (std::int64_t n = 0; n < 3; ++n) {
      const Loss alone = loss(tape.input(x.value().rows(n, n + 1)), target.rows(n, n + 1), {});
      BOOST_TEST(v[n] == static_cast<float>(alone.read().sum / 10), boost::test_tools::tolerance(1e-5f));
    }
  }
}

BOOST_AUTO_TEST_CASE(without_weights_and_with_weights_of_one_they_are_the_same) {
  for (const LossOf loss : all_losses) {
    const Var x = tape.input(normal_tensor({4, 3}, 1));
    const Tensor target = normal_tensor({4, 3}, 2);
    BOOST_TEST(loss(x, target, {}).read().sum == loss(x, target, {floats({1, 1, 1, 1})}).read().sum,
               boost::test_tools::tolerance(1e-6));
  }
}

BOOST_AUTO_TEST_CASE(no_samples_make_no_loss) {
  for (const LossOf loss : all_losses) {
    const Var x = tape.input(Tensor::empty({0, 4}));
    Tensor values;
    const Loss found = loss(x, Tensor::empty({0, 4}), {Tensor::empty({0}), &values});
    BOOST_TEST(found.read().sum == 0);
    BOOST_TEST(found.read().count == 0);
    BOOST_TEST(values.numel() == 0);
    backward(found);
  }
}

BOOST_AUTO_TEST_CASE(far_from_the_target_nothing_overflows) {
  const Var x = tape.input(floats({-200, 200, 88}));
  const Loss found = bce_with_logits(x, floats({1, 0, 1}));
  BOOST_TEST(found.read().sum == 400, boost::test_tools::tolerance(1e-6));
  backward(found);
  const float* const dx = tape.gradient(x).data<float>();
  BOOST_TEST(dx[0] == -1);
  BOOST_TEST(dx[1] == 1);
  BOOST_TEST(std::abs(dx[2]) < 1e-30);
}

BOOST_AUTO_TEST_CASE(smooth_l1_of_beta_zero_is_l1) {
  const Var x = tape.input(normal_tensor({6}, 1));
  const Tensor target = normal_tensor({6}, 2);
  BOOST_TEST(smooth_l1(x, target, 0).read().sum == l1(x, target).read().sum);
}

BOOST_AUTO_TEST_CASE(of_what_is_not_a_number_they_are_not_a_number) {
  for (const LossOf loss : all_losses) {
    const Var x = tape.input(floats({1, std::nanf(""), 2}));
    const Loss found = loss(x, floats({1, 1, 1}), {});
    BOOST_TEST(std::isnan(found.read().sum));
    backward(found);
    BOOST_TEST(std::isnan(tape.gradient(x).data<float>()[1]));
  }
}

BOOST_AUTO_TEST_CASE(a_multiple_of_one_is_added_over_the_same_samples) {
  const Var x = tape.input(normal_tensor({2, 3}, 1));
  const Tensor target = normal_tensor({2, 3}, 2);
  const Loss both = mse(x, target) + 0.1f * l1(x, target);
  BOOST_TEST(both.read().sum == mse(x, target).read().sum + 0.1 * l1(x, target).read().sum,
             boost::test_tools::tolerance(1e-6));
  BOOST_TEST(both.read().count == 6);
  backward(both);
  for (std::int64_t i = 0; i < 6; ++i) {
    const float off = x.value().data<float>()[i] - target.data<float>()[i];
    BOOST_TEST(tape.gradient(x).data<float>()[i] == 2 * off + std::copysign(0.1f, off),
               boost::test_tools::tolerance(1e-5f));
  }
}

BOOST_AUTO_TEST_CASE(a_sum_over_other_samples_is_refused_with_both_counts) {
  const Var x = tape.input(normal_tensor({2, 3}, 1)), y = tape.input(normal_tensor({5}, 1));
  const Loss a = mse(x, normal_tensor({2, 3}, 2)), b = mse(y, normal_tensor({5}, 2));
  BOOST_CHECK_EXCEPTION(a + b, UsageError, mentions("6", "5", "append"));
}

BOOST_AUTO_TEST_CASE(one_sample_set_after_another_adds_counts) {
  const Var x = tape.input(normal_tensor({2, 3}, 1)), y = tape.input(normal_tensor({5}, 1));
  const Loss a = mse(x, normal_tensor({2, 3}, 2)), b = mse(y, normal_tensor({5}, 2)), both = append(a, b);
  BOOST_TEST(both.read().count == 11);
  BOOST_TEST(both.read().sum == a.read().sum + b.read().sum);
}

BOOST_AUTO_TEST_CASE(a_loss_of_nothing_adds_nothing) {
  const Loss one = mse(tape.input(normal_tensor({3}, 1)), Tensor::zeros({3}), {});
  for (const Loss& sum : {append({}, one), append(one, {}), Loss{} + one, one + Loss{}}) {
    BOOST_TEST(sum.read().sum == one.read().sum);
    BOOST_TEST(sum.read().count == 3);
  }
}

BOOST_AUTO_TEST_CASE(a_sum_of_ones_own_is_a_loss_with_its_count) {
  const Var x = tape.input(floats({1, 2}));
  const Loss own = loss_of(sum(x * x), 2);
  BOOST_TEST((own + mse(x, Tensor::zeros({2}), {})).read().sum == 10);
  BOOST_TEST(own.read().count == 2);
  BOOST_CHECK_THROW(loss_of(x, 2), UsageError);
  BOOST_CHECK_THROW(own + (Loss{sum(x), {}}), UsageError);  // which does not say what it counts
}

BOOST_AUTO_TEST_CASE(terms_of_samples_are_the_loss_of_their_sum) {
  const Tensor values = floats({1, 2, 3, 5});
  const Var x = tape.input(values), same = tape.input(values);
  const Loss of_terms = loss_of_samples(x * x), of_sum = loss_of(sum(same * same), 4);
  BOOST_TEST(of_terms.read().sum == of_sum.read().sum);
  BOOST_TEST(of_terms.read().count == 4);
  backward(of_terms, 3);
  backward(of_sum, 3);
  for (int i = 0; i < 4; ++i)
    BOOST_TEST(tape.gradient(x).data<float>()[i] == tape.gradient(same).data<float>()[i]);
  BOOST_CHECK_THROW(loss_of_samples(sum(x)), UsageError);
}

BOOST_AUTO_TEST_CASE(a_pass_of_two_shards_has_a_loss_for_each) {
  tape.begin({.shards = 2});
  const Var x = tape.input(floats({1, 2, 3, 5}));
  const Loss loss = mse(x, Tensor::zeros({4}), {}) + 0.5f * loss_of_samples(x * x);
  const double* const total = loss.total.data<double>();
  BOOST_TEST((loss.total.shape() == Shape{2, 2}));
  BOOST_TEST(total[0] == 1.5 * 5);
  BOOST_TEST(total[1] == 2);
  BOOST_TEST(total[2] == 1.5 * 34);
  BOOST_TEST(loss.read().sum == 1.5 * 39);
  BOOST_CHECK_EXCEPTION(loss_of(sum(x), 4), UsageError,
                        [](const Error& error) { return contains(error.what(), "loss_of_samples"); });
  backward(loss);
  for (int i = 0; i < 4; ++i) BOOST_TEST(tape.gradient(x).data<float>()[i] == 3 * x.value().data<float>()[i]);
}

BOOST_AUTO_TEST_CASE(a_bf16_pass_does_not_round_targets) {
  tape.begin({.compute = DType::bfloat16});
  const Var x = tape.input(backend->in_type(floats({1000}), DType::bfloat16));
  BOOST_TEST(mse(x, floats({1003}), {}).read().sum == 9);
  BOOST_TEST(mse(x, floats({1001}), {floats({1})}).read().sum == 1);
}

BOOST_AUTO_TEST_CASE(a_var_without_a_tape_is_refused) {
  BOOST_CHECK_THROW(Var() + Var(), UsageError);
  BOOST_CHECK_THROW(tape.input(floats({1})) * Var(), UsageError);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
  const Var x = tape.input(normal_tensor({2, 3}, 1)), scalar = tape.input(normal_tensor({}, 1));
  const Tensor target = normal_tensor({2, 3}, 2);
  for (const LossOf loss : all_losses) {
    BOOST_CHECK_THROW(loss(x, normal_tensor({3, 2}, 2), {}), UsageError);
    BOOST_CHECK_THROW(loss(x, target, {floats({1, 1, 1})}), UsageError);
    BOOST_CHECK_THROW(loss(scalar, normal_tensor({}, 2), {floats({1})}), UsageError);
  }
  BOOST_CHECK_THROW(smooth_l1(x, target, -1), UsageError);
  BOOST_CHECK_THROW(smooth_l1(x, target, std::nanf("")), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
