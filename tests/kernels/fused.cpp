// Operations in one go have the bits of the same operations one after another.
#include <cstring>

#include "kernels/images.h"
#include "ops/batch_norm.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(fused)

template <class T = float>
void check_same_bits(const Tensor& fused, const Tensor& apart, const char* what) {
  BOOST_REQUIRE(fused.shape() == apart.shape());
  const T *a = fused.data<T>(), *b = apart.data<T>();
  for (std::int64_t i = 0; i < apart.stored_numel(); ++i) {
    if (std::memcmp(a + i, b + i, sizeof(T)) == 0) continue;
    BOOST_TEST(false, what << ": element " << i << " is " << a[i] << ", not " << b[i]);
    return;
  }
}

/// Whatever a batch norm and its backward take, of [N, C, H, W] in a channel block or of [N, C].
struct Normalised {
  explicit Normalised(Draws& draws)
      : backend(kernels::make_cpu_backend(draws.one_of({1, 1, 3}))),
        channels(draws.one_of<std::int64_t>({1, 3, 5, 8, 10, 16, 32, 40, 70})),
        matrix(draws.between(0, 3) == 0),
        shape(matrix ? Shape{draws.between(0, 40), channels}
                     : Shape{draws.between(0, 5), channels, draws.between(0, 13), draws.between(1, 33)}),
        block(matrix ? 1 : draws.block(channels)) {
    for (Tensor* const tensor : {&x, &dy, &beside, &shortcut}) *tensor = drawn(draws);
    for (Tensor* const tensor : {&mean, &inv_std, &weight, &bias})
      *tensor = stored(*backend, draws.normals(channels), {channels});
  }

  Tensor drawn(Draws& draws) const {
    if (matrix) return stored(*backend, draws.normals(shape.numel()), shape);
    return stored(*backend, draws.images(shape[0], shape[1], shape[2], shape[3]), block);
  }
  Tensor empty() const { return unwritten(*backend, shape, block); }
  Tensor sums() const { return backend->empty({2, channels}, DType::float64); }
  /// y, and what the ReLU was applied to.
  Tensor relu_of_norm(const Tensor& added) const {
    const Tensor y = empty();
    backend->run(ops::BatchNorm{.x = x, .norm = {mean, inv_std, weight, bias}, .y = y});
    if (added) backend->run(ops::add(y, added, y));
    backend->run(ops::Activate{ops::Activation::relu, y, y});
    return y;
  }

  std::unique_ptr<kernels::Backend> backend;
  std::int64_t channels;
  bool matrix;
  Shape shape;
  int block;
  Tensor x, dy, beside, shortcut, mean, inv_std, weight, bias;
};

template <class Body>
void for_random_norms(const Body& body) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < 100; ++round) {
      const Normalised p(draws);
      BOOST_TEST_CONTEXT("x " << to_string(p.shape) << " in blocks of " << p.block) { body(p); }
    }
  }
}

BOOST_AUTO_TEST_CASE(batch_norm_relu_is_batch_norm_then_the_sum_then_relu) {
  for_random_norms([](const Normalised& p) {
    for (const Tensor& shortcut : {Tensor(), p.shortcut}) {
      const Tensor y = p.empty();
      p.backend->run(ops::BatchNorm{p.x, {p.mean, p.inv_std, p.weight, p.bias}, shortcut, true, y});
      check_same_bits(y, p.relu_of_norm(shortcut), "y");
    }
  });
}

BOOST_AUTO_TEST_CASE(batch_norm_relu_keeps_a_nan) {
  const auto backend = kernels::make_cpu_backend();
  const Tensor x = backend->empty({1, 1}), one = backend->empty({1}), y = backend->empty({1, 1});
  backend->fill(x, std::numeric_limits<double>::quiet_NaN());
  backend->fill(one, 1);
  backend->run(ops::BatchNorm{x, {one, one, one, one}, {}, true, y});
  BOOST_TEST(std::isnan(*y.data<float>()));
}

BOOST_AUTO_TEST_CASE(batch_norm_relu_backward_is_that_of_relu_then_that_of_batch_norm) {
  for_random_norms([](const Normalised& p) {
    kernels::Backend& on = *p.backend;
    const Tensor y = p.relu_of_norm({}), gradient = p.empty(), count = on.empty({}, DType::float64);
    on.fill(count, 77);
    on.run(ops::ActivateBackward{ops::Activation::relu, y, p.dy, gradient});
    const Tensor apart = p.sums(), fused = p.sums();
    on.run(ops::BatchNormBackwardSums{gradient, p.x, {p.mean, p.inv_std}, false, apart});
    on.run(ops::BatchNormBackwardSums{p.dy, p.x, {p.mean, p.inv_std, p.weight, p.bias}, true, fused});
    check_same_bits<double>(fused, apart, "sums");
    for (const Tensor& counted : {Tensor(), count}) {
      const Tensor dx_apart = p.empty(), dx = p.empty();
      on.run(ops::BatchNormBackwardInput{
          gradient, p.x, {p.mean, p.inv_std, p.weight}, false, apart, counted, dx_apart});
      on.run(ops::BatchNormBackwardInput{
          p.dy, p.x, {p.mean, p.inv_std, p.weight, p.bias}, true, apart, counted, dx});
      check_same_bits(dx, dx_apart, "dx");
    }
  });
}

BOOST_AUTO_TEST_CASE(gated_backward_sums_are_those_of_the_gradients_sum_behind_the_relu) {
  for_random_norms([](const Normalised& p) {
    kernels::Backend& on = *p.backend;
    const Tensor y = p.relu_of_norm(p.shortcut);
    for (const Tensor& beside : {Tensor(), p.beside}) {
      const Tensor upstream = p.empty(), gated_apart = p.empty(), gated = p.empty(), apart = p.sums(),
                   fused = p.sums();
      beside ? on.run(ops::add(p.dy, beside, upstream)) : on.copy(p.dy, upstream);
      on.run(ops::ActivateBackward{ops::Activation::relu, y, upstream, gated_apart});
      on.run(ops::BatchNormBackwardSums{gated_apart, p.x, {p.mean, p.inv_std}, false, apart});
      on.run(ops::BatchNormGatedBackwardSums{p.dy, beside, y, p.x, p.mean, p.inv_std, gated, fused});
      check_same_bits(gated, gated_apart, "gated");
      check_same_bits<double>(fused, apart, "sums");
    }
  });
}

BOOST_AUTO_TEST_CASE(a_layer_norm_of_a_sum_is_the_sum_then_the_layer_norm) {
  Draws draws;
  SEEDED {
    for (int round = 0; round < 60; ++round) {
      const auto backend = kernels::make_cpu_backend(draws.one_of({1, 3}));
      const std::int64_t rows = draws.between(0, 150), width = draws.between(0, 70);
      const Shape shape{rows, width};
      BOOST_TEST_CONTEXT(to_string(shape)) {
        const auto draw = [&](const Shape& s) { return stored(*backend, draws.normals(s.numel()), s); };
        const auto empty = [&](const Shape& s) { return unwritten(*backend, s); };
        const Tensor a = draw(shape), b = draw(shape), dy = draw(shape), beside = draw(shape),
                     weight = draw({width}), bias = draw({width});
        const Tensor sum = empty(shape), y = empty(shape), mean = empty({rows}), inv_std = empty({rows});
        const Tensor sum_f = empty(shape), y_f = empty(shape), mean_f = empty({rows}),
                     inv_std_f = empty({rows});
        if (width == 0)
          for (const Tensor* const tensor : {&mean, &inv_std, &mean_f, &inv_std_f})
            backend->fill(*tensor, 0);  // of nothing, and left alone
        backend->run(ops::add(a, b, sum));
        backend->run(ops::LayerNorm{sum, {}, weight, bias, 1e-5f, {}, y, mean, inv_std});
        backend->run(ops::LayerNorm{a, b, weight, bias, 1e-5f, sum_f, y_f, mean_f, inv_std_f});
        check_same_bits(sum_f, sum, "sum");
        check_same_bits(y_f, y, "y");
        check_same_bits(mean_f, mean, "mean");
        check_same_bits(inv_std_f, inv_std, "inv_std");

        const Tensor own = empty(shape), total = empty(shape), fused = empty(shape), dweight = draw({width}),
                     dbias = draw({width}), dweight_f = empty({width}), dbias_f = empty({width});
        backend->copy(dweight, dweight_f);
        backend->copy(dbias, dbias_f);
        backend->run(ops::LayerNormBackward{dy, sum, weight, mean, inv_std, {}, own, dweight, dbias, true});
        backend->run(ops::add(beside, own, total));
        backend->run(
            ops::LayerNormBackward{dy, sum, weight, mean, inv_std, beside, fused, dweight_f, dbias_f, true});
        check_same_bits(fused, total, "dx");
        check_same_bits(dweight_f, dweight, "dweight");
        check_same_bits(dbias_f, dbias, "dbias");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_layer_and_its_activation_are_the_layer_then_the_activation) {
  using ops::Activation;
  Draws draws;
  SEEDED {
    for (int round = 0; round < 60; ++round) {
      const auto backend = kernels::make_cpu_backend(draws.one_of({1, 3}));
      const std::int64_t rows = draws.between(0, 130), in = draws.between(0, 40), out = draws.between(0, 300);
      const auto kind = draws.one_of({ops::Activation::relu, ops::Activation::silu, ops::Activation::gelu_erf,
                                      ops::Activation::gelu_tanh});
      const bool has_bias = draws.between(0, 3) > 0, keeps = draws.between(0, 1) > 0;
      BOOST_TEST_CONTEXT(rows << " x " << in << " -> " << out) {
        const auto draw = [&](const Shape& s) { return stored(*backend, draws.normals(s.numel()), s); };
        const auto empty = [&](const Shape& s) { return unwritten(*backend, s); };
        const Tensor x = draw({rows, in}), weight = draw({out, in}), dy = draw({rows, out}),
                     bias = has_bias ? draw({out}) : Tensor();
        const Tensor before = empty({rows, out}), y = empty({rows, out}), before_f = empty({rows, out}),
                     y_f = empty({rows, out});
        backend->run(ops::linear(x, weight, bias, before));
        backend->run(ops::Activate{kind, before, y});
        backend->run(ops::linear(x, weight, bias, y_f, kind, keeps ? before_f : Tensor()));
        if (keeps) check_same_bits(before_f, before, "before");
        check_same_bits(y_f, y, "y");

        const Tensor product = empty({rows, in}), dx = empty({rows, in}), dx_f = empty({rows, in});
        backend->run(ops::linear_backward_input(dy, weight, product));
        backend->run(ops::ActivateBackward{kind, x, product, dx});
        backend->run(ops::linear_backward_input(dy, weight, dx_f, kind, x));
        check_same_bits(dx_f, dx, "dx");

        const Tensor dweight = draw({out, in}), dbias = draw({out}), dweight_f = empty({out, in}),
                     dbias_f = empty({out});
        backend->copy(dweight, dweight_f);
        backend->copy(dbias, dbias_f);
        for (const bool accumulate : {true, false}) {
          backend->run(ops::linear_backward_weight(x, dy, dweight, accumulate));
          backend->run(ops::SumRows{dy, dbias, accumulate});
          backend->run(ops::linear_backward_weight(x, dy, dweight_f, accumulate, dbias_f));
          check_same_bits(dweight_f, dweight, "dweight");
          check_same_bits(dbias_f, dbias, "dbias");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
