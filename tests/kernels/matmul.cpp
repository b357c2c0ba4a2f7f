// Dense layers against sums in double, and the independence of a row's bits.
#include "kernels/reference.h"
#include "lockstep/ops/linear.h"

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
        backend->run(ops::Linear{c.x, c.weight, c.bias, result});
        check_close(result, y, "y");
        backend->run(ops::LinearBackwardInput{c.dy, c.weight, input_gradient});
        check_close(input_gradient, dx, "dx");
        const Tensor weight_gradient = Tensor::empty({out, in});
        for (float& value : floats(weight_gradient)) value = NAN;  // overwritten, whatever was there
        backend->run(ops::LinearBackwardWeight{c.x, c.dy, weight_gradient, false});
        check_close(weight_gradient, dw, "dweight");
        backend->run(ops::LinearBackwardWeight{c.x, c.dy, weight_gradient, true});
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
      whole->run(ops::Linear{c.x, c.weight, c.bias, y});
      whole->run(ops::LinearBackwardInput{c.dy, c.weight, dx});
      for (const int rows : {1, 2, 5, 6, 31, 64, 77, 88, 97, 199}) {
        for (const int first : {0, 1}) {
          BOOST_TEST_CONTEXT(threads << " threads, in " << in << ", out " << out << ", rows " << rows
                                     << " from " << first) {
            const Tensor some_y = Tensor::empty({rows, out}), some_dx = Tensor::empty({rows, in});
            backend->run(ops::Linear{c.x.rows(first, first + rows), c.weight, c.bias, some_y});
            backend->run(ops::LinearBackwardInput{c.dy.rows(first, first + rows), c.weight, some_dx});
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
  backend->run(ops::Linear{c.x, c.weight, c.bias, y});
  backend->run(ops::LinearBackwardInput{c.dy, c.weight, dx});
  for (int rows = 1; rows < 40; ++rows) {
    BOOST_TEST_CONTEXT("rows " << rows) {
      const Tensor some_y = Tensor::empty({rows, 19}), some_dx = Tensor::empty({rows, 70});
      backend->run(ops::Linear{c.x.rows(0, rows), c.weight, c.bias, some_y});
      backend->run(ops::LinearBackwardInput{c.dy.rows(0, rows), c.weight, some_dx});
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
    backend->run(ops::LinearBackwardWeight{c.x, c.dy, first, false});
    backend->run(ops::LinearBackwardWeight{copy_of(c.x), copy_of(c.dy), second, false});
    BOOST_TEST(same_bits(first, second));
  }
}

BOOST_AUTO_TEST_CASE(leading_dimensions_are_folded) {
  Draw draw(14);
  const auto backend = make_cpu_backend();
  const Case c(draw, 12, 5, 7);
  const Tensor flat = Tensor::empty({12, 7}), deep = Tensor::empty({3, 4, 7});
  backend->run(ops::Linear{c.x, c.weight, Tensor(), flat});
  backend->run(ops::Linear{c.x.reshape({3, 4, 5}), c.weight, Tensor(), deep});
  BOOST_TEST(same_bits(flat, deep));
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_types_are_refused_by_name) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({2, 3}), weight = Tensor::zeros({4, 3}), y = Tensor::zeros({2, 4});
  const auto says = [](const char* text) {
    return [text](const UsageError& error) {
      return std::string_view(error.what()).find(text) != std::string_view::npos;
    };
  };
  BOOST_CHECK_EXCEPTION(backend->run(ops::Linear{Tensor::zeros({2, 5}), weight, Tensor(), y}), UsageError,
                        says("linear: x"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::Linear{Tensor::zeros({3, 3}), weight, Tensor(), y}), UsageError,
                        says("rows"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::Linear{x, weight, Tensor::zeros({3}), y}), UsageError,
                        says("bias"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::Linear{Tensor::zeros({2, 3}, DType::float64), weight, Tensor(), y}),
                        UsageError, says("float64"));
  BOOST_CHECK_EXCEPTION(backend->run(ops::LinearBackwardWeight{x, Tensor::zeros({2, 5}), weight, false}),
                        UsageError, says("linear_backward_weight: dy"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
