// Formulas over inputs of several shapes and types, against their definition.
#include "lockstep/ops/elementwise.h"

#include "kernels/reference.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(map)

using kernels::make_cpu_backend;

/// Element of `input` that broadcasts to element `at` of a tensor of this shape, by NumPy's rules.
float broadcast_element(const Tensor& input, const Shape& shape, std::int64_t at) {
  std::int64_t place = 0, step = 1;
  for (int d = shape.rank() - 1, i = input.shape().rank() - 1; i >= 0; --d, --i) {
    if (input.size(i) != 1) place += at % shape[d] * step;
    step *= input.size(i);
    at /= shape[d];
  }
  return input.data<float>()[place];
}

BOOST_AUTO_TEST_CASE(inputs_of_fewer_and_single_dimensions_are_repeated) {
  Draw draw(181);
  const std::vector<std::array<Shape, 3>> cases = {{{{3, 5, 7}, {7}, {3, 5, 7}}},
                                                   {{{3, 5, 7}, {5, 1}, {3, 5, 7}}},
                                                   {{{3, 1, 7}, {1, 5, 1}, {3, 5, 7}}},
                                                   {{{1}, {2000}, {2000}}},
                                                   {{{}, {4, 3}, {4, 3}}},
                                                   {{{2, 3000}, {3000}, {2, 3000}}},
                                                   {{{2, 1, 4, 1}, {3, 1, 5}, {2, 3, 4, 5}}},
                                                   {{{0, 4}, {4}, {0, 4}}},
                                                   {{{1500, 2}, {2}, {1500, 2}}},
                                                   {{{700, 1, 3}, {1, 5, 1}, {700, 5, 3}}},
                                                   {{{50, 40, 1}, {50, 1, 1}, {50, 40, 1}}},
                                                   {{{90, 1, 1, 4}, {7, 5, 1}, {90, 7, 5, 4}}},
                                                   {{{1, 1}, {1}, {1, 1}}}};
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [a_shape, b_shape, y_shape] : cases) {
      const Tensor a = draw.normal(a_shape), b = draw.normal(b_shape), y = Tensor::empty(y_shape);
      backend->run(ops::Map<ops::Sum>{{}, {a, b}, y});
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        const float wanted = broadcast_element(a, y_shape, i) + broadcast_element(b, y_shape, i);
        BOOST_TEST_REQUIRE(y.data<float>()[i] == wanted, to_string(a_shape)
                                                             << " + " << to_string(b_shape) << " at " << i);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(inputs_of_both_types_are_computed_in_float32_and_rounded_once) {
  Draw draw(182);
  const auto backend = make_cpu_backend();
  for (const Shape& row_shape : {Shape{6}, Shape{5, 6}, Shape{5, 1}}) {
    const Tensor x = draw.normal({5, 6}), row = draw.normal(row_shape),
                 rounded = Tensor::empty({5, 6}, DType::bfloat16), widened = Tensor::empty({5, 6}),
                 sum = Tensor::empty({5, 6}), wanted = Tensor::empty({5, 6}, DType::bfloat16),
                 y = Tensor::empty({5, 6}, DType::bfloat16);
    backend->copy(x, rounded);
    backend->copy(rounded, widened);
    backend->run(ops::Map<ops::Sum>{{}, {widened, row}, sum});
    backend->copy(sum, wanted);
    backend->run(ops::Map<ops::Sum>{{}, {rounded, row}, y});
    BOOST_TEST(same_bits(y, wanted), to_string(row_shape));
  }
}

BOOST_AUTO_TEST_CASE(lanes_that_pad_a_channel_block_stay_zero) {
  const auto backend = make_cpu_backend();
  const Tensor one = Tensor::empty({});
  backend->fill(one, 5);
  for (const Shape& shape : {Shape{2, 3, 2, 2}, Shape{1, 1, 1, 1}}) {
    const Tensor x = backend->empty(shape, DType::float32, 8), y = backend->empty(shape, DType::float32, 8);
    backend->fill(x, 1);
    backend->run(ops::Map<ops::Sum>{{}, {x, one}, y});
    std::int64_t sixes = 0;
    for (std::int64_t i = 0; i < y.stored_numel(); ++i) {
      const float value = y.data<float>()[i];
      BOOST_TEST((value == 6 || value == 0));
      sixes += value == 6;
    }
    BOOST_TEST(sixes == y.numel());
  }
}

BOOST_AUTO_TEST_CASE(sums_and_multiples_by_name_take_equal_shapes_only) {
  const Tensor a = Tensor::zeros({2, 3}), row = Tensor::zeros({3}),
               half = Tensor::zeros({2, 3}, DType::bfloat16);
  BOOST_CHECK_THROW(ops::add(a, row, a), UsageError);
  BOOST_CHECK_THROW(ops::add(a, half, a), UsageError);
  BOOST_CHECK_THROW(ops::scale(row, 2, a), UsageError);
}

BOOST_AUTO_TEST_CASE(inputs_that_do_not_fit_are_refused_with_both_shapes) {
  const auto backend = make_cpu_backend();
  const auto refused = [&](const Shape& a, const Shape& b, const Shape& y) {
    BOOST_CHECK_EXCEPTION(
        backend->run(ops::Map<ops::Sum>{{}, {Tensor::zeros(a), Tensor::zeros(b)}, Tensor::zeros(y)}),
        UsageError, [&](const UsageError& error) {
          return std::string(error.what()).ends_with("does not broadcast to " + to_string(y));
        });
  };
  refused({2, 3}, {2}, {2, 3});
  refused({2, 3}, {4, 2, 3}, {2, 3});
  refused({1, 3}, {1, 3}, {2, 4});
  refused({2, 3}, {2, 3}, {3});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
