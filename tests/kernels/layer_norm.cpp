// Layer norm and its gradients against double precision.
#include "kernels/reference.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(layer_norm)

using kernels::make_cpu_backend;

constexpr float eps = 1e-5f;

struct Reference {
  std::vector<double> y, dx, dweight, dbias;
};

Reference reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy) {
  const std::int64_t rows = x.size(0), n = x.size(1);
  Reference out;
  out.dweight.resize(static_cast<std::size_t>(n));
  out.dbias.resize(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float *row = x.data<float>() + r * n, *up = dy.data<float>() + r * n, *w = weight.data<float>();
    double mean = 0, variance = 0, g_mean = 0, gx_mean = 0;
    for (std::int64_t i = 0; i < n; ++i) mean += row[i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i)
      variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(n);
    const double inverse = 1 / std::sqrt(variance + eps);
    for (std::int64_t i = 0; i < n; ++i) {
      const double normal = (row[i] - mean) * inverse, g = static_cast<double>(up[i]) * w[i];
      out.y.push_back(normal * w[i] + bias.data<float>()[i]);
      out.dweight[static_cast<std::size_t>(i)] += up[i] * normal;
      out.dbias[static_cast<std::size_t>(i)] += up[i];
      g_mean += g / static_cast<double>(n);
      gx_mean += g * normal / static_cast<double>(n);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const double normal = (row[i] - mean) * inverse;
      out.dx.push_back(inverse * (static_cast<double>(up[i]) * w[i] - g_mean - normal * gx_mean));
    }
  }
  return out;
}

struct Results {
  explicit Results(const Tensor& x)
      : y(Tensor::empty(x.shape())),
        mean(Tensor::empty({x.size(0)})),
        inv_std(Tensor::empty({x.size(0)})),
        dx(Tensor::empty(x.shape())),
        dweight(Tensor::empty({x.size(1)})),
        dbias(Tensor::empty({x.size(1)})) {}

  Tensor y, mean, inv_std, dx, dweight, dbias;
};

Results compute(int threads, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy) {
  Results out(x);
  const auto backend = make_cpu_backend(threads);
  backend->run(ops::LayerNorm{x, {}, weight, bias, eps, {}, out.y, out.mean, out.inv_std});
  backend->run(ops::LayerNormBackward{
      dy, x, weight, out.mean, out.inv_std, {}, out.dx, out.dweight, out.dbias, false});
  return out;
}

BOOST_AUTO_TEST_CASE(equals_double_precision) {
  Draw draw(51);
  for (const auto& [rows, n] :
       {std::pair<int, int>{0, 5}, {1, 1}, {3, 2}, {7, 31}, {65, 256}, {130, 77}, {200, 9}, {2, 1000}}) {
    BOOST_TEST_CONTEXT("rows " << rows << ", width " << n) {
      const Tensor x = draw.normal({rows, n}, 3), w = draw.normal({n}), b = draw.normal({n}),
                   dy = draw.normal({rows, n});
      const Reference expected = reference(x, w, b, dy);
      const Results one = compute(1, x, w, b, dy);
      check_close(one.y, expected.y, "y");
      check_close(one.dweight, expected.dweight, "dweight");
      check_close(one.dbias, expected.dbias, "dbias");
      if (n > 2)
        check_close(one.dx, expected.dx, "dx");  // at one or two elements dx is a difference of equals
    }
  }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_threads) {
  Draw draw(52);
  const Tensor x = draw.normal({300, 100}), w = draw.normal({100}), b = draw.normal({100}),
               dy = draw.normal({300, 100});
  const Results one = compute(1, x, w, b, dy), three = compute(3, x, w, b, dy);
  BOOST_TEST(same_bits(one.y, three.y));
  BOOST_TEST(same_bits(one.dx, three.dx));
  BOOST_TEST(same_bits(one.dweight, three.dweight));
  BOOST_TEST(same_bits(one.dbias, three.dbias));
}

BOOST_AUTO_TEST_CASE(a_large_mean_costs_no_variance) {
  Draw draw(53);
  const Tensor x = draw.normal({4, 512}), one = Tensor::empty({512}), zero = Tensor::zeros({512}),
               y = Tensor::empty({4, 512}), mean = Tensor::empty({4}), inv_std = Tensor::empty({4});
  const auto backend = make_cpu_backend();
  backend->fill(one, 1);
  for (float& value : floats(x)) value += 1000;
  backend->run(ops::LayerNorm{x, {}, one, zero, eps, {}, y, mean, inv_std});
  for (int r = 0; r < 4; ++r) {
    double m = 0, v = 0;
    for (int i = 0; i < 512; ++i) m += x.data<float>()[r * 512 + i] / 512.0;
    for (int i = 0; i < 512; ++i) v += std::pow(x.data<float>()[r * 512 + i] - m, 2) / 512.0;
    BOOST_TEST(inv_std.data<float>()[r] == 1 / std::sqrt(v + eps), boost::test_tools::tolerance(1e-5));
  }
}

BOOST_AUTO_TEST_CASE(parameter_gradients_accumulate) {
  Draw draw(54);
  const Tensor x = draw.normal({9, 12}), w = draw.normal({12}), b = draw.normal({12}),
               dy = draw.normal({9, 12});
  Results out = compute(1, x, w, b, dy);
  const Tensor once = copy_of(out.dweight);
  make_cpu_backend()->run(
      ops::LayerNormBackward{dy, x, w, out.mean, out.inv_std, {}, out.dx, out.dweight, out.dbias, true});
  for (int i = 0; i < 12; ++i) BOOST_TEST(out.dweight.data<float>()[i] == 2 * once.data<float>()[i]);
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_refused) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({3, 4}), four = Tensor::zeros({4}), three = Tensor::zeros({3});
  BOOST_CHECK_THROW(backend->run(ops::LayerNorm{x, {}, three, four, eps, {}, x, three, three}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::LayerNorm{x, {}, four, four, eps, {}, x, four, three}), UsageError);
}

BOOST_AUTO_TEST_CASE(an_addend_needs_a_place_for_the_sum_and_the_other_way_round) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({3, 4}), four = Tensor::zeros({4}), three = Tensor::zeros({3});
  BOOST_CHECK_THROW(backend->run(ops::LayerNorm{x, x, four, four, eps, {}, x, three, three}), UsageError);
  BOOST_CHECK_THROW(backend->run(ops::LayerNorm{x, {}, four, four, eps, x, x, three, three}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
