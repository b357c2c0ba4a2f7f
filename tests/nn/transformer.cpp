// RMSNorm and MultiheadAttention: names, first values, and results by their formulas in float64.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

namespace lockstep::test {
namespace {

struct OnTheCpu {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  OnTheCpu() { tape.begin({.record = false}); }
};

/// Each parameter, filled with other values than the first.
void draw(const ModelState& state) {
  for (Param* const param : state.params) nn::initialize(*param, nn::Init::normal(0.5f), 9);
}

Tensor normal_tensor(Shape shape) {
  const Tensor tensor = Tensor::empty(shape);
  const Random random({.seed = 4, .purpose = purpose_of("x")});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

std::vector<std::string> names_of(const ModelState& state) {
  std::vector<std::string> names;
  for (const Param* const param : state.params) names.push_back(param->name);
  return names;
}

/// Element i of x weight' + bias, of a row of x.
double linear_at(const std::vector<double>& x, const Param& weight, const Param* bias, std::int64_t i) {
  const auto in = static_cast<std::int64_t>(x.size());
  double sum = bias ? bias->value.data<float>()[i] : 0;
  for (std::int64_t j = 0; j < in; ++j)
    sum += x[static_cast<std::size_t>(j)] * weight.value.data<float>()[i * in + j];
  return sum;
}

BOOST_FIXTURE_TEST_SUITE(transformer, OnTheCpu)

BOOST_AUTO_TEST_CASE(rms_norm_begins_at_one_and_divides_by_the_root_of_the_mean_square) {
  nn::Module root;
  nn::RMSNorm norm(root, "norm", 6, 0.1f);
  BOOST_TEST(names_of(root) == std::vector<std::string>{"norm.weight"}, boost::test_tools::per_element());
  for (int i = 0; i < 6; ++i) BOOST_TEST(norm.weight.value.data<float>()[i] == 1.0f);
  draw(root);
  const Tensor x = normal_tensor({2, 3, 6}), y = norm(tape.constant(x)).value();
  for (std::int64_t row = 0; row < 6; ++row) {
    double squares = 0;
    for (std::int64_t i = 0; i < 6; ++i) squares += std::pow(x.data<float>()[row * 6 + i], 2.0);
    for (std::int64_t i = 0; i < 6; ++i) {
      const double wanted =
          norm.weight.value.data<float>()[i] * x.data<float>()[row * 6 + i] / std::sqrt(squares / 6 + 0.1);
      BOOST_TEST(std::abs(y.data<float>()[row * 6 + i] - wanted) < 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(multihead_attention_has_the_parameters_of_pytorch) {
  nn::Module root(1);
  const nn::MultiheadAttention attend(root, "attn", 64, 4);
  BOOST_TEST(names_of(root) == (std::vector<std::string>{"attn.in_proj_weight", "attn.in_proj_bias",
                                                         "attn.out_proj.weight", "attn.out_proj.bias"}),
             boost::test_tools::per_element());
  BOOST_TEST((attend.in_proj_weight.value.shape() == Shape{192, 64}));
  float most = 0;
  for (int i = 0; i < 192 * 64; ++i)
    most = std::max(most, std::abs(attend.in_proj_weight.value.data<float>()[i]));
  BOOST_TEST(most <= std::sqrt(6.0f / (64 + 192)));
  BOOST_TEST(most > 0.99f * std::sqrt(6.0f / (64 + 192)));
  for (int i = 0; i < 64; ++i) BOOST_TEST(attend.out_proj.bias->value.data<float>()[i] == 0.0f);
  nn::Module without;
  const nn::MultiheadAttention no_bias(without, "attn", 8, 2, false);
  BOOST_TEST(names_of(without) == (std::vector<std::string>{"attn.in_proj_weight", "attn.out_proj.weight"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(multihead_attention_looks_at_other_sequences_as_at_its_own) {
  for (const bool with_bias : {false, true}) {
    nn::Module root;
    nn::MultiheadAttention attend(root, "attn", 6, 2, with_bias);
    draw(root);
    const Var x = tape.constant(normal_tensor({2, 5, 6}));
    const Tensor own = attend(x).value(), of_three = attend(x, x, x).value();
    for (int i = 0; i < 60; ++i)
      BOOST_TEST(of_three.data<float>()[i] == own.data<float>()[i], boost::test_tools::tolerance(1e-5f));
    const Var first = narrow(x, 1, 0, 2);  // a place's result does not depend on who else looks
    const Tensor of_first = attend(first, x, x).value();
    for (int b = 0; b < 2; ++b) {
      for (int i = 0; i < 12; ++i)
        BOOST_TEST(of_first.data<float>()[b * 12 + i] == own.data<float>()[b * 30 + i],
                   boost::test_tools::tolerance(1e-5f));
    }
  }
}

BOOST_AUTO_TEST_CASE(multihead_attention_is_its_formula) {
  const std::int64_t time = 5, channels = 6, heads = 2, width = channels / heads;
  for (const bool causal : {false, true}) {
    nn::Module root;
    nn::MultiheadAttention attend(root, "attn", channels, heads);
    draw(root);
    const Tensor x = normal_tensor({2, time, channels}), y = attend(tape.constant(x), causal).value();
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto projected = [&](std::int64_t t, std::int64_t third, std::int64_t c) {
        const float* const row = x.data<float>() + (b * time + t) * channels;
        return linear_at({row, row + channels}, attend.in_proj_weight, &*attend.in_proj_bias,
                         third * channels + c);
      };
      for (std::int64_t t = 0; t < time; ++t) {
        std::vector<double> attended(static_cast<std::size_t>(channels));
        for (std::int64_t h = 0; h < heads; ++h) {
          double sum = 0;
          for (std::int64_t j = 0; j < (causal ? t + 1 : time); ++j) {
            double score = 0;
            for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
              score += projected(t, 0, c) * projected(j, 1, c) / std::sqrt(static_cast<double>(width));
            sum += std::exp(score);
            for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
              attended[static_cast<std::size_t>(c)] += std::exp(score) * projected(j, 2, c);
          }
          for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
            attended[static_cast<std::size_t>(c)] /= sum;
        }
        for (std::int64_t c = 0; c < channels; ++c)
          BOOST_TEST(std::abs(y.data<float>()[(b * time + t) * channels + c] -
                              linear_at(attended, attend.out_proj.weight, &*attend.out_proj.bias, c)) < 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(multihead_attention_refuses_heads_that_do_not_divide_the_channels) {
  nn::Module root;
  BOOST_CHECK_EXCEPTION(nn::MultiheadAttention(root, "attn", 6, 4), UsageError, [](const UsageError& error) {
    return std::string(error.what()) == "attn: 4 heads do not divide 6 channels";
  });
  BOOST_TEST(root.state().params.empty());
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
