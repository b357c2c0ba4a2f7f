// Activations and their slopes against double precision.
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(activation)

using kernels::make_cpu_backend;
using ops::Activation;

struct Named {
  ops::Activation kind;
  const char* name;
  double (*value)(double);
};

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

const Named kinds[] = {{ops::Activation::relu, "relu", [](double x) { return std::max(x, 0.0); }},
                       {ops::Activation::silu, "silu", [](double x) { return x / (1 + std::exp(-x)); }},
                       {ops::Activation::gelu_erf, "gelu_erf",
                        [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
                       {ops::Activation::gelu_tanh, "gelu_tanh", gelu_tanh}};

Tensor line(std::int64_t count, float from, float to) {
  const Tensor x = Tensor::empty({count});
  for (std::int64_t i = 0; i < count; ++i) {
    x.data<float>()[i] = from + (to - from) * (static_cast<float>(i) + 0.5f) / static_cast<float>(count);
  }
  return x;
}

BOOST_AUTO_TEST_CASE(values_are_within_a_millionth) {
  const auto backend = make_cpu_backend(2);
  const Tensor x = line(40001, -12, 12), y = Tensor::empty(x.shape());
  for (const Named& kind : kinds) {
    backend->run(ops::Activate{kind.kind, x, y});
    double most = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double at = x.data<float>()[i];
      most = std::max(most, std::abs(y.data<float>()[i] - kind.value(at)) / std::max(1.0, std::abs(at)));
    }
    BOOST_TEST(most < 3e-7, kind.name << " is off by " << most);
  }
}

BOOST_AUTO_TEST_CASE(slopes_equal_differences) {
  const auto backend = make_cpu_backend();
  const Tensor x = line(20001, -9, 9), dx = Tensor::empty(x.shape()), dy = Tensor::empty(x.shape());
  backend->fill(dy, -2);
  for (const Named& kind : kinds) {
    backend->run(ops::ActivateBackward{kind.kind, x, dy, dx});
    double most = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double at = x.data<float>()[i], step = 1e-5;
      if (kind.kind == ops::Activation::relu && std::abs(at) <= step) continue;
      const double slope = (kind.value(at + step) - kind.value(at - step)) / (2 * step);
      most = std::max(most, std::abs(dx.data<float>()[i] + 2 * slope));
    }
    BOOST_TEST(most < 2e-6, kind.name << " is off by " << most);
  }
}

BOOST_AUTO_TEST_CASE(far_out_nothing_overflows) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::empty({4}), y = Tensor::empty({4}), dy = Tensor::empty({4}),
               dx = Tensor::empty({4});
  const float far[] = {-3e38f, -1e4f, 1e4f, 3e38f};
  std::copy(far, far + 4, x.data<float>());
  backend->fill(dy, 1);
  for (const Named& kind : kinds) {
    backend->run(ops::Activate{kind.kind, x, y});
    backend->run(ops::ActivateBackward{kind.kind, x, dy, dx});
    for (int i = 0; i < 4; ++i) {
      BOOST_TEST(y.data<float>()[i] == (i < 2 ? 0.0f : far[i]), kind.name << " at " << far[i]);
      BOOST_TEST(dx.data<float>()[i] == (i < 2 ? 0.0f : 1.0f), kind.name << "'s slope at " << far[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_nan_stays_a_nan) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::empty({9}), y = Tensor::empty({9});
  backend->fill(x, NAN);
  for (const Named& kind : kinds) {
    backend->run(ops::Activate{kind.kind, x, y});
    for (const float value : floats(y)) BOOST_TEST(std::isnan(value), kind.name);
  }
}

BOOST_AUTO_TEST_CASE(an_element_does_not_depend_on_its_position) {
  Draw draw(21);
  const auto backend = make_cpu_backend();
  const Tensor x = draw.normal({101}, 3), y = Tensor::empty({101}), dx = Tensor::empty({101}),
               dy = draw.normal({101});
  for (const Named& kind : kinds) {
    backend->run(ops::Activate{kind.kind, x, y});
    backend->run(ops::ActivateBackward{kind.kind, x, dy, dx});
    for (std::int64_t i = 0; i < 101; ++i) {
      const Tensor alone = Tensor::empty({1}), slope = Tensor::empty({1});
      backend->run(ops::Activate{kind.kind, x.rows(i, i + 1), alone});
      backend->run(ops::ActivateBackward{kind.kind, x.rows(i, i + 1), dy.rows(i, i + 1), slope});
      BOOST_TEST(same_bits(alone, y.rows(i, i + 1)));
      BOOST_TEST(same_bits(slope, dx.rows(i, i + 1)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
