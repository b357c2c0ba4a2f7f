// Products by OpenBLAS on Arm: in which order an element is summed.
#include <omp.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(ordered_sums)

using kernels::Matrix;

float element(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  return matrix.transposed ? matrix.data[column * matrix.stride + row]
                           : matrix.data[row * matrix.stride + column];
}

BOOST_AUTO_TEST_CASE(an_element_is_the_sum_of_its_fused_products_in_order_whatever_is_beside_it) {
  constexpr std::int64_t summed = 256;
  kernels::product_rows();
  std::mt19937 random(1);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  std::normal_distribution<float> normal;
  const auto values = [&](std::int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& value : made) value = normal(random);
    return made;
  };
  for (int round = 0; round < 400; ++round) {
    const std::int64_t m = draw(1, draw(0, 3) == 0 ? 200 : 40), n = draw(1, draw(0, 3) == 0 ? 300 : 40),
                       k = draw(0, draw(0, 2) == 0 ? 700 : 100), stride = n + draw(0, 3);
    const bool a_transposed = draw(0, 1) == 1, b_transposed = draw(0, 1) == 1;
    const std::int64_t a_stride = (a_transposed ? m : k) + draw(1, 4),
                       b_stride = (b_transposed ? k : n) + draw(1, 4);
    const std::vector<float> a_values = values(std::max(m, k) * a_stride),
                             b_values = values(std::max(n, k) * b_stride), before = values(m * stride);
    const Matrix a{a_values.data(), a_stride, a_transposed}, b{b_values.data(), b_stride, b_transposed};
    const float beta = draw(0, 1) == 1 ? 1.0f : 0.0f;
    std::vector<float> c = before;
    omp_set_num_threads(1);
    kernels::multiply(m, n, k, a, b, beta, c.data(), stride);
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float expected = beta * before[static_cast<std::size_t>(i * stride + j)];
        for (std::int64_t first = 0; first < k; first += summed) {
          float sum = 0;
          for (std::int64_t l = first; l < std::min(k, first + summed); ++l)
            sum = std::fma(element(a, i, l), element(b, l, j), sum);
          expected += sum;
        }
        different +=
            std::memcmp(&expected, &c[static_cast<std::size_t>(i * stride + j)], sizeof expected) != 0;
      }
    }
    BOOST_TEST(different == 0, different << " elements of " << m << " x " << n << ", " << k << " products, "
                                         << (a_transposed ? "A^T " : "A ") << (b_transposed ? "B^T" : "B"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
