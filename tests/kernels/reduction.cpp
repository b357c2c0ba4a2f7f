// Sums of gradients and of their squares.
#include "kernels/reference.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/update.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(reduction)

using kernels::make_cpu_backend;

BOOST_AUTO_TEST_CASE(accumulate_adds_element_by_element) {
  Draw draw(101);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const std::int64_t count : {0, 1, 9, 40001}) {
      const Tensor into = draw.normal({count}), x = draw.normal({count}), before = copy_of(into);
      backend->run(ops::Accumulate{into, x});
      for (std::int64_t i = 0; i < count; ++i) {
        BOOST_REQUIRE(into.data<float>()[i] == before.data<float>()[i] + x.data<float>()[i]);
      }
    }
    const Tensor sums = Tensor::zeros({3}, DType::float64), x = Tensor::zeros({3}, DType::float64);
    x.data<double>()[1] = 0.1;
    backend->run(ops::Accumulate{sums, x});
    backend->run(ops::Accumulate{sums, x});
    BOOST_TEST(sums.data<double>()[1] == 0.2);
    BOOST_CHECK_THROW(backend->run(ops::Accumulate{sums, Tensor::zeros({3})}), UsageError);
    const Tensor single = Tensor::zeros({3});
    single.data<float>()[1] = 1;
    backend->run(ops::Accumulate{single, sums});  // rounds what it adds
    BOOST_TEST(single.data<float>()[1] == 1.0f + 0.2f);
  }
}

void sum_squares(kernels::Backend& backend, const Tensor& x, const Tensor& blocks) {
  const ops::BlockSumsOfSquares::Part part{x, blocks};
  backend.run(ops::BlockSumsOfSquares{{&part, 1}});
}

BOOST_AUTO_TEST_CASE(block_sums_equal_double_precision_and_ignore_neighbours) {
  Draw draw(102);
  for (const int threads : {1, 2}) {
    const auto backend = make_cpu_backend(threads);
    for (const std::int64_t count : {0, 1, 17, 4095, 4096, 4097, 30000}) {
      const Tensor x = draw.normal({count}, 1e-3f);
      const std::int64_t needed = (count + 4095) / 4096;
      const Tensor blocks = Tensor::empty({needed}, DType::float64);
      sum_squares(*backend, x, blocks);
      for (std::int64_t b = 0; b < needed; ++b) {
        const std::int64_t first = b * 4096, last = std::min(count, first + 4096);
        double sum = 0;
        for (std::int64_t i = first; i < last; ++i)
          sum += std::pow(static_cast<double>(x.data<float>()[i]), 2);
        const double result = blocks.data<double>()[b];
        BOOST_TEST(std::abs(result - sum) <= 1e-13 * sum);
        const Tensor alone = Tensor::empty({1}, DType::float64);  // the same bits when a slice begins here
        sum_squares(*backend, x.rows(first, last), alone);
        BOOST_TEST(*alone.data<double>() == result);
      }
    }
    BOOST_CHECK_THROW(sum_squares(*backend, Tensor::zeros({4096}), Tensor::zeros({2}, DType::float64)),
                      UsageError);
    BOOST_CHECK_THROW(sum_squares(*backend, Tensor::zeros({4096}), Tensor::zeros({1})), UsageError);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
