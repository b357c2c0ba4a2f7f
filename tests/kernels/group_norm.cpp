// Group norm and its gradients against double precision.
#include "kernels/reference.h"
#include "ops/norm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(group_norm)

using kernels::make_cpu_backend;

constexpr float eps = 1e-5f;

struct Results {
  Results(const Tensor& x, int groups)
      : y(Tensor::empty(x.shape())),
        mean(Tensor::empty({x.size(0), groups})),
        inv_std(Tensor::empty({x.size(0), groups})),
        dx(Tensor::empty(x.shape())),
        dweight(Tensor::empty({x.size(1)})),
        dbias(Tensor::empty({x.size(1)})) {}

  Tensor y, mean, inv_std, dx, dweight, dbias;
};

Results compute(int threads, int groups, const Tensor& x, const Tensor& w, const Tensor& b,
                const Tensor& dy) {
  Results out(x, groups);
  const auto backend = make_cpu_backend(threads);
  backend->run(ops::GroupNorm{x, groups, w, b, eps, out.y, out.mean, out.inv_std});
  backend->run(
      ops::GroupNormBackward{dy, x, groups, w, out.mean, out.inv_std, out.dx, out.dweight, out.dbias, false});
  return out;
}

/// y in double; the gradients follow from it by central differences of sum(y dy).
std::vector<double> normalised(const std::vector<double>& x, const Shape& shape, int groups, const Tensor& w,
                               const Tensor& b) {
  const std::int64_t channels = shape[1], places = shape[2] * shape[3], n = channels / groups * places;
  std::vector<double> y(x.size());
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(x.size()); first += n) {
    double mean = 0, variance = 0;
    for (std::int64_t i = first; i < first + n; ++i)
      mean += x[static_cast<std::size_t>(i)] / static_cast<double>(n);
    for (std::int64_t i = first; i < first + n; ++i) {
      variance += std::pow(x[static_cast<std::size_t>(i)] - mean, 2) / static_cast<double>(n);
    }
    for (std::int64_t i = first; i < first + n; ++i) {
      const std::int64_t c = i / places % channels;
      y[static_cast<std::size_t>(i)] =
          (x[static_cast<std::size_t>(i)] - mean) / std::sqrt(variance + eps) * w.data<float>()[c] +
          b.data<float>()[c];
    }
  }
  return y;
}

BOOST_AUTO_TEST_CASE(equals_double_precision) {
  Draw draw(61);
  struct Sizes {
    int images, channels, height, width, groups;
  };
  for (const auto& [images, channels, height, width, group_count] :
       {Sizes{2, 6, 3, 5, 3}, {1, 4, 1, 1, 2}, {3, 8, 2, 7, 1}, {2, 4, 4, 4, 4}, {0, 4, 2, 2, 2}}) {
    const int groups = group_count;  // lambdas may not capture bindings under Clang 14
    const Tensor x = draw.normal({images, channels, height, width}), w = draw.normal({channels}),
                 b = draw.normal({channels}), dy = draw.normal(x.shape());
    const Results out = compute(2, groups, x, w, b, dy);
    const std::vector<double> in(floats(x).begin(), floats(x).end());
    const std::vector<double> y = normalised(in, x.shape(), groups, w, b);
    check_close(out.y, y, "y");
    std::vector<double> dx, dweight(static_cast<std::size_t>(channels)), dbias(dweight);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto change = [&](double step) {
        std::vector<double> moved = in;
        moved[i] += step;
        const std::vector<double> at = normalised(moved, x.shape(), groups, w, b);
        double sum = 0;
        for (std::size_t j = 0; j < at.size(); ++j) sum += at[j] * dy.data<float>()[j];
        return sum;
      };
      dx.push_back((change(1e-5) - change(-1e-5)) / 2e-5);
      const std::size_t c = i / static_cast<std::size_t>(height * width) % static_cast<std::size_t>(channels);
      dbias[c] += dy.data<float>()[i];
      dweight[c] += dy.data<float>()[i] * (y[i] - b.data<float>()[c]) / w.data<float>()[c];
    }
    check_close(out.dx, dx, "dx");
    check_close(out.dweight, dweight, "dweight");
    check_close(out.dbias, dbias, "dbias");
  }
}

BOOST_AUTO_TEST_CASE(does_not_depend_on_threads) {
  Draw draw(62);
  const Tensor x = draw.normal({5, 12, 9, 9}), w = draw.normal({12}), b = draw.normal({12}),
               dy = draw.normal(x.shape());
  const Results one = compute(1, 4, x, w, b, dy), three = compute(3, 4, x, w, b, dy);
  BOOST_TEST(same_bits(one.y, three.y));
  BOOST_TEST(same_bits(one.dx, three.dx));
  BOOST_TEST(same_bits(one.dweight, three.dweight));
}

BOOST_AUTO_TEST_CASE(groups_must_divide_the_channels) {
  const auto backend = make_cpu_backend();
  const Tensor x = Tensor::zeros({1, 6, 2, 2}), six = Tensor::zeros({6}), four = Tensor::zeros({1, 4});
  BOOST_CHECK_THROW(backend->run(ops::GroupNorm{x, 4, six, six, eps, x, four, four}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
