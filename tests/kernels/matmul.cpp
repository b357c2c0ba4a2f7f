// Dense layers against sums in double, and the independence of a row's bits.
#include "ops/matmul.h"
#include "kernels/reference.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(matmul)

using kernels::make_cpu_backend;

constexpr int sizes[][3] = {{0, 3, 4},      {5, 0, 4},     {5, 3, 0},    {1, 1, 1},     {1, 7, 3},
                            {2, 64, 10},    {6, 17, 5},    {97, 31, 33}, {100, 256, 7}, {193, 65, 256},
                            {131, 256, 67}, {200, 5, 300}, {600, 70, 80}};

struct Case {
  Case(Draw& draw, int rows_, int in_, int out_)
      : rows(rows_),
        in(in_),
        out(out_),
        x(draw.normal({rows, in})),
        weight(draw.normal({out, in})),
        bias(draw.normal({out})),
        dy(draw.normal({rows, out})) {}

  std::int64_t rows, in, out;
  Tensor x, weight, bias, dy;
};

BOOST_AUTO_TEST_CASE(linear_and_its_gradients_equal_sums_in_double) {
  Draw draw(11);
  for (const int threads : {1, 2, 3}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [rows, in, out] : sizes) {
      BOOST_TEST_CONTEXT(threads << " threads, rows " << rows << ", in " << in << ", out " << out) {
        const Case c(draw, rows, in, out);
        std::vector<double> y, dx(static_cast<std::size_t>(rows * in)),
            dw(static_cast<std::size_t>(out * in));
        for (int r = 0; r < rows; ++r) {
          for (int o = 0; o < out; ++o) {
            double sum = c.bias.data<float>()[o];
            const double upstream = c.dy.data<float>()[r * out + o];
            for (int i = 0; i < in; ++i) {
              const double xi = c.x.data<float>()[r * in + i], w = c.weight.data<float>()[o * in + i];
              sum += xi * w;
              dx[static_cast<std::size_t>(r * in + i)] += upstream * w;
              dw[static_cast<std::size_t>(o * in + i)] += upstream * xi;
            }
            y.push_back(sum);
          }
        }
        const Tensor result = Tensor::empty({rows, out}), input_gradient = Tensor::empty({rows, in});
        backend->run(ops::linear(c.x, c.weight, c.bias, result));
        check_close(result, y, "y");
        backend->run(ops::linear_backward_input(c.dy, c.weight, input_gradient));
        check_close(input_gradient, dx, "dx");
        const Tensor weight_gradient = Tensor::empty({out, in});
        for (float& value : floats(weight_gradient)) value = NAN;  // overwritten, whatever was there
        backend->run(ops::linear_backward_weight(c.x, c.dy, weight_gradient, false));
        check_close(weight_gradient, dw, "dweight");
        backend->run(ops::linear_backward_weight(c.x, c.dy, weight_gradient, true));
        for (double& value : dw) value *= 2;
        check_close(weight_gradient, dw, "dweight accumulated");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_depends_neither_on_the_other_rows_nor_on_threads) {
  Draw draw(12);
  constexpr int layers[][2] = {{256, 768}, {1024, 256}, {256, 1024}, {64, 10},
                               {7, 5},     {300, 1},    {1, 40},     {512, 512}};
  const auto whole = make_cpu_backend(1);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const auto& [in, out] : layers) {
      const Case c(draw, 230, in, out);
      const Tensor y = Tensor::empty({230, out}), dx = Tensor::empty({230, in});
      whole->run(ops::linear(c.x, c.weight, c.bias, y));
      whole->run(ops::linear_backward_input(c.dy, c.weight, dx));
      for (const int rows : {1, 2, 5, 6, 31, 64, 77, 88, 97, 199}) {
        for (const int first : {0, 1}) {
          BOOST_TEST_CONTEXT(threads << " threads, in " << in << ", out " << out << ", rows " << rows
                                     << " from " << first) {
            const Tensor some_y = Tensor::empty({rows, out}), some_dx = Tensor::empty({rows, in});
            backend->run(ops::linear(c.x.rows(first, first + rows), c.weight, c.bias, some_y));
            backend->run(ops::linear_backward_input(c.dy.rows(first, first + rows), c.weight, some_dx));
            BOOST_TEST(same_bits(some_y, y.rows(first, first + rows)));
            BOOST_TEST(same_bits(some_dx, dx.rows(first, first + rows)));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(few_rows_have_the_bits_that_they_have_among_many) {
  Draw draw(15);
  const auto backend = make_cpu_backend(1);
  const Case c(draw, 40, 70, 19);
  const Tensor y = Tensor::empty({40, 19}), dx = Tensor::empty({40, 70});
  backend->run(ops::linear(c.x, c.weight, c.bias, y));
  backend->run(ops::linear_backward_input(c.dy, c.weight, dx));
  for (int rows = 1; rows < 40; ++rows) {
    BOOST_TEST_CONTEXT("rows " << rows) {
      const Tensor some_y = Tensor::empty({rows, 19}), some_dx = Tensor::empty({rows, 70});
      backend->run(ops::linear(c.x.rows(0, rows), c.weight, c.bias, some_y));
      backend->run(ops::linear_backward_input(c.dy.rows(0, rows), c.weight, some_dx));
      BOOST_TEST(same_bits(some_y, y.rows(0, rows)));
      BOOST_TEST(same_bits(some_dx, dx.rows(0, rows)));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_repeated_call_gives_the_same_bits) {
  Draw draw(13);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    const Case c(draw, 143, 256, 130);
    const Tensor first = Tensor::empty({130, 256}), second = Tensor::empty({130, 256});
    backend->run(ops::linear_backward_weight(c.x, c.dy, first, false));
    backend->run(ops::linear_backward_weight(copy_of(c.x), copy_of(c.dy), second, false));
    BOOST_TEST(same_bits(first, second));
  }
}

BOOST_AUTO_TEST_CASE(leading_dimensions_are_folded) {
  Draw draw(14);
  const auto backend = make_cpu_backend();
  const Case c(draw, 12, 5, 7);
  const Tensor flat = Tensor::empty({12, 7}), deep = Tensor::empty({3, 4, 7});
  backend->run(ops::linear(c.x, c.weight, Tensor(), flat));
  backend->run(ops::linear(c.x.reshape({3, 4, 5}), c.weight, Tensor(), deep));
  BOOST_TEST(same_bits(flat, deep));
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_types_are_refused_by_name) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({2, 3}), weight = Tensor::zeros({4, 3}), y = Tensor::zeros({2, 4});
  BOOST_CHECK_EXCEPTION(backend->run(ops::linear(Tensor::zeros({2, 5}), weight, Tensor(), y)), UsageError,
                        mentions("a of shape [2, 5]"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::linear(Tensor::zeros({3, 3}), weight, Tensor(), y)), UsageError,
                        mentions("a of shape [3, 3]"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::linear(x, weight, Tensor::zeros({3}), y)), UsageError,
                        mentions("bias"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::linear(Tensor::zeros({2, 3}, DType::float64), weight, Tensor(), y)),
                        UsageError, mentions("float64"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::linear_backward_weight(x, Tensor::zeros({2, 5}), weight, false)),
                        UsageError, mentions("a of shape [2, 5]"));
}

/// Place `back`, counted from the last dimension, of an element; 0 where the tensor has it once, or not.
std::int64_t place(const Shape& shape, std::int64_t element, const Shape& of) {
  std::int64_t at = 0, step = 1;
  for (int back = 0; back < shape.rank(); ++back) {
    const std::int64_t along = element % shape[shape.rank() - 1 - back];
    element /= shape[shape.rank() - 1 - back];
    if (back >= of.rank()) continue;
    const std::int64_t extent = of[of.rank() - 1 - back];
    at += (extent == 1 ? 0 : along) * step;
    step *= extent;
  }
  return at;
}

/// a b for each place of `batch`, added up where y has fewer.
std::vector<double> products(const Tensor& a, const Tensor& b, ops::Transposed transposed, const Shape& y,
                             const Shape& batch) {
  const bool turn_a = transposed == ops::Transposed::a, turn_b = transposed == ops::Transposed::b;
  const std::int64_t m = y[-2], n = y[-1], k = a.size(turn_a ? -2 : -1);
  const auto leading = [](const Shape& shape) {
    return Shape(shape.extents().first(static_cast<std::size_t>(shape.rank() - 2)));
  };
  std::vector<double> sums(static_cast<std::size_t>(y.numel()));
  for (std::int64_t p = 0; p < batch.numel(); ++p) {
    const float* const of_a = a.data<float>() + place(batch, p, leading(a.shape())) * m * k;
    const float* const of_b = b.data<float>() + place(batch, p, leading(b.shape())) * k * n;
    double* const of_y = sums.data() + place(batch, p, leading(y)) * m * n;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t l = 0; l < k; ++l)
          of_y[i * n + j] += static_cast<double>(turn_a ? of_a[l * m + i] : of_a[i * k + l]) *
                             static_cast<double>(turn_b ? of_b[j * k + l] : of_b[l * n + j]);
      }
    }
  }
  return sums;
}

BOOST_AUTO_TEST_CASE(batched_products_and_sums_of_them_equal_sums_in_double) {
  Draw draw(13);
  struct Batches {
    Shape a, b, y, all;
  };
  const Batches batches[] = {{{}, {}, {}, {}},
                             {{3}, {3}, {3}, {3}},
                             {{2, 3}, {}, {2, 3}, {2, 3}},
                             {{}, {4}, {4}, {4}},
                             {{2, 1, 2}, {3, 1}, {2, 3, 2}, {2, 3, 2}},
                             {{2, 3}, {2, 3}, {}, {2, 3}},
                             {{2, 3}, {2, 3}, {2, 1}, {2, 3}},
                             {{2, 3, 2}, {3, 1}, {3, 2}, {2, 3, 2}},
                             {{0}, {0}, {0}, {0}},
                             {{0, 2}, {0, 2}, {2}, {0, 2}}};
  constexpr int matrices[][3] = {{1, 1, 1}, {5, 7, 3}, {17, 2, 30}, {4, 3, 0}, {130, 140, 150}};
  const auto shape_of = [](const Shape& batch, std::int64_t rows, std::int64_t columns) {
    std::vector<std::int64_t> extents(batch.begin(), batch.end());
    extents.insert(extents.end(), {rows, columns});
    return Shape(std::span<const std::int64_t>(extents));
  };
  for (const int threads : {1, 3}) {
    const auto backend = make_cpu_backend(threads);
    for (const Batches& of : batches) {
      for (const auto& [m, n, k] : matrices) {
        for (const auto transposed : {ops::Transposed::none, ops::Transposed::a, ops::Transposed::b}) {
          const bool turn_a = transposed == ops::Transposed::a, turn_b = transposed == ops::Transposed::b;
          const Tensor a = draw.normal(shape_of(of.a, turn_a ? k : m, turn_a ? m : k)),
                       b = draw.normal(shape_of(of.b, turn_b ? n : k, turn_b ? k : n)),
                       y = Tensor::empty(shape_of(of.y, m, n));
          BOOST_TEST_CONTEXT(threads << " threads, " << to_string(a.shape()) << " by " << to_string(b.shape())
                                     << " into " << to_string(y.shape())) {
            std::vector<double> expected = products(a, b, transposed, y.shape(), of.all);
            for (float& value : floats(y)) value = NAN;  // overwritten, whatever was there
            backend->run(ops::MatMul{a, b, transposed, y});
            check_close(y, expected, "y");
            backend->run(ops::MatMul{a, b, transposed, y, true});
            for (double& value : expected) value *= 2;
            check_close(y, expected, "y accumulated");
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_product_depends_neither_on_those_beside_it_nor_on_threads) {
  Draw draw(14);
  constexpr int matrices[][3] = {{5, 7, 3}, {33, 64, 48}, {160, 150, 140}};
  for (const auto& [m, n, k] : matrices) {
    for (const bool one_b : {true, false}) {
      const Tensor a = draw.normal({6, m, k}), b = one_b ? draw.normal({k, n}) : draw.normal({6, k, n}),
                   y = Tensor::empty({6, m, n});
      make_cpu_backend(3)->run(ops::MatMul{a, b, ops::Transposed::none, y});
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 3}, {3, 6}}) {
        const Tensor part = Tensor::empty({end - begin, m, n});
        make_cpu_backend(2)->run(
            ops::MatMul{a.rows(begin, end), one_b ? b : b.rows(begin, end), ops::Transposed::none, part});
        BOOST_TEST(std::memcmp(part.raw(), y.rows(begin, end).raw(), part.bytes()) == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(products_of_shapes_that_do_not_fit_are_refused) {
  const auto backend = make_cpu_backend(1);
  const auto refused = [&](Shape a, Shape b, Shape y, DType type = DType::float32, bool accumulate = false) {
    BOOST_CHECK_THROW(backend->run(ops::MatMul{Tensor::zeros(a), Tensor::zeros(b), ops::Transposed::none,
                                               Tensor::zeros(y, type), accumulate}),
                      UsageError);
  };
  refused({2, 3}, {4, 5}, {2, 5});
  refused({3}, {3, 5}, {5});
  refused({2, 2, 3}, {3, 3, 5}, {2, 2, 5});
  refused({2, 2, 3}, {2, 3, 5}, {3, 2, 5});
  refused({2, 3}, {3, 5}, {4, 2, 5});
  refused({2, 3}, {3, 5}, {2, 5}, DType::bfloat16);
}

BOOST_AUTO_TEST_CASE(an_epilogue_that_does_not_belong_to_a_product_is_refused) {
  const auto backend = make_cpu_backend(1);
  const Tensor a = Tensor::zeros({3, 3}), b = Tensor::zeros({3, 3}), y = Tensor::zeros({3, 3}),
               row = Tensor::zeros({3});
  const auto refused = [&](const ops::MatMul& op) { BOOST_CHECK_THROW(backend->run(op), UsageError); };
  refused({.a = a, .b = b, .y = y, .accumulate = true, .bias = row});
  refused({.a = a, .b = b, .y = y, .accumulate = true, .activation = ops::Activation::relu});
  refused({.a = a, .b = b, .transposed = ops::Transposed::a, .y = y, .bias = row});
  refused({.a = a, .b = b, .y = y, .dbias = row});
  refused({.a = a, .b = Tensor::zeros({1, 3, 3}), .y = Tensor::zeros({1, 3, 3}), .bias = row});
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
