// In bf16 too a fused operation stores what the operations one by one would: a part of a model that is
// computed again in the backward may take them apart.
#include "kernels/reference.h"
#include "ops/batch_norm.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(bfloat16_fused)

using kernels::Backend;
using kernels::make_cpu_backend;
using ops::Activation;

struct Fixture {
  Draw draw{93};
  std::unique_ptr<Backend> backend = make_cpu_backend(2);

  Tensor half(Shape shape) {
    const Tensor x = empty(shape);
    backend->copy(draw.normal(shape), x);
    return x;
  }
  Tensor empty(Shape shape) { return backend->empty(shape, DType::bfloat16); }
};

BOOST_FIXTURE_TEST_SUITE(bfloat16_fused, Fixture)

BOOST_AUTO_TEST_CASE(a_dense_layer_with_its_activation) {
  for (const ops::Activation kind : {ops::Activation::relu, ops::Activation::silu, ops::Activation::gelu_erf,
                                     ops::Activation::gelu_tanh}) {
    const std::int64_t rows = 1 + draw.below(200), in = 1 + draw.below(90), out = 1 + draw.below(90);
    const Tensor x = half({rows, in}), weight = half({out, in}), bias = draw.normal({out}),
                 dy = half({rows, out}), at = half({rows, in});
    const Tensor before = kind == ops::Activation::relu ? Tensor() : empty({rows, out}),
                 y = empty({rows, out}), product = empty({rows, out}), wanted = empty({rows, out});
    backend->run(ops::linear(x, weight, bias, y, kind, before));
    backend->run(ops::linear(x, weight, bias, product));
    backend->run(ops::Activate{kind, product, wanted});
    BOOST_TEST(same_bits(y, wanted));
    if (before) BOOST_TEST(same_bits(before, product));

    const Tensor dx = empty({rows, in}), upstream = empty({rows, in}), wanted_dx = empty({rows, in});
    backend->run(ops::linear_backward_input(dy, weight, dx, kind, at));
    backend->run(ops::linear_backward_input(dy, weight, upstream));
    backend->run(ops::ActivateBackward{kind, at, upstream, wanted_dx});
    BOOST_TEST(same_bits(dx, wanted_dx));
  }
}

BOOST_AUTO_TEST_CASE(a_sum_and_its_layer_norm) {
  for (const std::int64_t width : {1, 7, 64, 259}) {
    const std::int64_t rows = 1 + draw.below(300);
    const Shape shape{rows, width};
    const Tensor a = half(shape), b = half(shape), weight = draw.normal({width}), bias = draw.normal({width});
    const Tensor sum = empty(shape), y = empty(shape), mean = backend->empty({rows}),
                 inv_std = backend->empty({rows});
    backend->run(ops::LayerNorm{a, b, weight, bias, 1e-5f, sum, y, mean, inv_std});
    const Tensor wanted_sum = empty(shape), wanted = empty(shape), wanted_mean = backend->empty({rows}),
                 wanted_inv_std = backend->empty({rows});
    backend->run(ops::add(a, b, wanted_sum));
    backend->run(
        ops::LayerNorm{wanted_sum, {}, weight, bias, 1e-5f, {}, wanted, wanted_mean, wanted_inv_std});
    BOOST_TEST(same_bits(sum, wanted_sum));
    BOOST_TEST(same_bits(y, wanted));
    BOOST_TEST(same_bits(mean, wanted_mean));
    BOOST_TEST(same_bits(inv_std, wanted_inv_std));
  }
}

BOOST_AUTO_TEST_CASE(what_a_relu_lets_through_to_batch_norm) {
  const std::int64_t channels = 10;
  const Shape shape{5, channels, 6, 7};
  const Tensor dy = half(shape), beside = half(shape), y = half(shape), x = half(shape),
               mean = draw.normal({channels}), inv_std = draw.normal({channels});
  for (const bool with_beside : {false, true}) {
    const Tensor gated = empty(shape), sums = backend->empty({2, channels}, DType::float64);
    backend->run(ops::BatchNormGatedBackwardSums{dy, with_beside ? beside : Tensor(), y, x, mean, inv_std,
                                                 gated, sums});
    Tensor given = dy;
    if (with_beside) {
      given = empty(shape);
      backend->run(ops::add(dy, beside, given));
    }
    const Tensor wanted = empty(shape), wanted_sums = backend->empty({2, channels}, DType::float64);
    backend->run(ops::ActivateBackward{ops::Activation::relu, y, given, wanted});
    backend->run(ops::BatchNormBackwardSums{wanted, x, {mean, inv_std}, false, wanted_sums});
    BOOST_TEST(same_bits(gated, wanted));
    BOOST_TEST(same_bits(sums, wanted_sums));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
