// The linear algebra of low-rank compression.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(low_rank)

using kernels::Backend;
using kernels::Orthonormal;
using Matrix = std::vector<float>;

Matrix random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  const Random random({.seed = seed});
  Matrix matrix(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = random.normal(i);
  return matrix;
}

double dot(const Matrix& a, std::int64_t row_a, const Matrix& b, std::int64_t row_b, std::int64_t length) {
  double sum = 0;
  for (std::int64_t i = 0; i < length; ++i)
    sum += static_cast<double>(a[static_cast<std::size_t>(row_a * length + i)]) *
           b[static_cast<std::size_t>(row_b * length + i)];
  return sum;
}

Tensor view(Matrix& matrix, std::int64_t rows) {
  return Tensor::view(matrix.data(), {rows, static_cast<std::int64_t>(matrix.size()) / rows}, DType::float32);
}

void orthonormalise_rows(Matrix& rows, std::int64_t count, const Orthonormal& how = {}) {
  const auto backend = kernels::make_cpu_backend();
  backend->orthonormalise(view(rows, count), how, view(rows, count));
}

BOOST_AUTO_TEST_CASE(vectors_become_orthonormal_and_span_what_they_spanned) {
  for (const auto& [count, length] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 37}, {4, 4}, {3, 19}, {8, 1024}}) {
    const Matrix before = random_matrix(count, length, 1);
    Matrix after = before;
    orthonormalise_rows(after, count);
    for (std::int64_t a = 0; a < count; ++a) {
      for (std::int64_t b = 0; b <= a; ++b)
        BOOST_TEST(std::abs(dot(after, a, after, b, length) - (a == b ? 1 : 0)) < 1e-6);
      // Of each vector nothing is outside the span of the first ones.
      double squares = 0;
      for (std::int64_t b = 0; b <= a; ++b) squares += std::pow(dot(before, a, after, b, length), 2);
      BOOST_TEST(squares == dot(before, a, before, a, length), boost::test_tools::tolerance(1e-5));
    }
  }
}

BOOST_AUTO_TEST_CASE(nearly_parallel_vectors_become_orthonormal) {
  const std::int64_t count = 3, length = 500;
  const Matrix noise = random_matrix(count, length, 3);
  Matrix vectors = random_matrix(1, length, 2);
  vectors.resize(static_cast<std::size_t>(count * length));
  for (std::int64_t i = length; i < count * length; ++i)
    vectors[static_cast<std::size_t>(i)] =
        vectors[static_cast<std::size_t>(i % length)] + 1e-5f * noise[static_cast<std::size_t>(i)];
  orthonormalise_rows(vectors, count);
  for (std::int64_t a = 0; a < count; ++a) {
    for (std::int64_t b = 0; b <= a; ++b)
      BOOST_TEST(std::abs(dot(vectors, a, vectors, b, length) - (a == b ? 1 : 0)) < 1e-6);
  }
}

constexpr std::int64_t dependent_length = 11;

/// Rows 1 and 3 say nothing new.
Matrix dependent_rows() {
  constexpr std::int64_t length = dependent_length;
  Matrix vectors = random_matrix(4, length, 4);
  for (std::int64_t i = 0; i < length; ++i) {
    vectors[static_cast<std::size_t>(length + i)] = 0;
    vectors[static_cast<std::size_t>(3 * length + i)] =
        2 * vectors[static_cast<std::size_t>(i)] - vectors[static_cast<std::size_t>(2 * length + i)];
  }
  return vectors;
}

BOOST_AUTO_TEST_CASE(a_vector_that_depends_on_earlier_ones_becomes_zero) {
  Matrix vectors = dependent_rows();
  orthonormalise_rows(vectors, 4);
  const auto along = [&](std::int64_t a, std::int64_t b) {
    return dot(vectors, a, vectors, b, dependent_length);
  };
  for (const std::int64_t row : {1, 3}) BOOST_TEST(along(row, row) == 0);
  for (const std::int64_t row : {0, 2}) BOOST_TEST(std::abs(along(row, row) - 1) < 1e-6);
  BOOST_TEST(std::abs(along(0, 2)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(random_numbers_may_take_its_place) {
  const RandomKey key{.seed = 8, .purpose = purpose_of("rows"), .step = 2};
  Matrix kept = dependent_rows(), drawn = dependent_rows(), again = dependent_rows();
  orthonormalise_rows(kept, 4);
  orthonormalise_rows(drawn, 4, {.draw = key});
  orthonormalise_rows(again, 4, {.draw = key});
  BOOST_TEST((drawn == again));
  for (std::int64_t a = 0; a < 4; ++a) {
    for (std::int64_t b = 0; b <= a; ++b)
      BOOST_TEST(std::abs(dot(drawn, a, drawn, b, dependent_length) - (a == b ? 1 : 0)) < 1e-6);
  }
  BOOST_TEST(std::abs(dot(drawn, 0, kept, 0, dependent_length) - 1) < 1e-6);
}

BOOST_AUTO_TEST_CASE(a_condition_that_is_zero_leaves_all_as_it_is) {
  float condition = 0;
  Orthonormal how;
  how.condition = Tensor::view(&condition, {1}, DType::float32);
  Matrix vectors = random_matrix(2, 9, 5), wanted = vectors;
  orthonormalise_rows(vectors, 2, how);
  BOOST_TEST((vectors == wanted));
  condition = 1;
  orthonormalise_rows(vectors, 2, how);
  orthonormalise_rows(wanted, 2);
  BOOST_TEST((vectors == wanted));
}

BOOST_AUTO_TEST_CASE(normal_numbers_follow_from_the_whole_key_in_tensors_of_any_shape) {
  const auto backend = kernels::make_cpu_backend();
  const RandomKey key{.seed = 8, .purpose = purpose_of("noise"), .step = 2, .shard = 5};
  for (const Shape& shape : {Shape{3, 7}, Shape{8, 1, 8, 8}, Shape{5}, Shape{}}) {
    const Tensor drawn = backend->empty(shape);
    backend->draw_normal(key, drawn);
    for (std::int64_t i = 0; i < shape.numel(); ++i)
      BOOST_TEST(drawn.data<float>()[i] == Random(key).normal(static_cast<std::uint64_t>(i)));
  }
}

BOOST_AUTO_TEST_CASE(keys_of_other_shards_draw_other_normal_numbers) {
  const auto backend = kernels::make_cpu_backend();
  const Tensor first = backend->empty({16}), second = backend->empty({16});
  backend->draw_normal({.seed = 8, .purpose = 1, .step = 2, .shard = 0}, first);
  backend->draw_normal({.seed = 8, .purpose = 1, .step = 2, .shard = 1}, second);
  BOOST_TEST(std::memcmp(first.raw(), second.raw(), first.bytes()) != 0);
}

BOOST_AUTO_TEST_CASE(vectors_that_are_not_finite_are_left_alone) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Matrix vectors = random_matrix(3, 9, 5);
    vectors[13] = bad;
    const Matrix before = vectors;
    orthonormalise_rows(vectors, 3);
    BOOST_TEST(std::memcmp(vectors.data(), before.data(), vectors.size() * sizeof(float)) == 0);
  }
}

BOOST_AUTO_TEST_CASE(columns_become_what_rows_become) {
  const std::int64_t count = 5, length = 23;
  Matrix rows = random_matrix(count, length, 6), columns(rows.size());
  for (std::int64_t v = 0; v < count; ++v) {
    for (std::int64_t i = 0; i < length; ++i)
      columns[static_cast<std::size_t>(i * count + v)] = rows[static_cast<std::size_t>(v * length + i)];
  }
  orthonormalise_rows(rows, count);
  const auto backend = kernels::make_cpu_backend();
  backend->orthonormalise(view(columns, length), {.vectors = Orthonormal::Vectors::columns},
                          view(columns, length));
  for (std::int64_t v = 0; v < count; ++v) {
    for (std::int64_t i = 0; i < length; ++i)
      BOOST_TEST(columns[static_cast<std::size_t>(i * count + v)] ==
                 rows[static_cast<std::size_t>(v * length + i)]);
  }
}

struct Expanded {
  Matrix matrix, rest;
  float valid = 5;
};

/// With an element of P put in.
Expanded expanded(std::int64_t n, std::int64_t m, std::int64_t rank, int threads, float failed = 0,
                  std::optional<float> first = {}) {
  Matrix p = random_matrix(n, rank, 7), q = random_matrix(rank, m, 8);
  if (first) p[0] = *first;
  Expanded result{random_matrix(n, m, 9), Matrix(static_cast<std::size_t>(n * m), 5)};
  kernels::make_cpu_backend(threads)->expand({.p = view(p, n),
                                              .q = view(q, rank),
                                              .failed = Tensor::view(&failed, {1}, DType::float32),
                                              .share = 0.25f,
                                              .matrix = view(result.matrix, n),
                                              .rest = view(result.rest, n),
                                              .valid = Tensor::view(&result.valid, {1}, DType::float32)});
  return result;
}

BOOST_AUTO_TEST_CASE(factors_expand_to_their_product_and_the_rest_is_what_it_lacks) {
  for (const std::int64_t m : {1, 30, 1025}) {
    const std::int64_t n = 13, rank = 3;
    const Matrix p = random_matrix(n, rank, 7), q = random_matrix(rank, m, 8),
                 before = random_matrix(n, m, 9);
    const Expanded result = expanded(n, m, rank, 1);
    BOOST_TEST(result.valid == 1);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < m; ++j) {
        double wanted = 0;
        for (std::int64_t k = 0; k < rank; ++k)
          wanted += static_cast<double>(p[static_cast<std::size_t>(i * rank + k)]) *
                    q[static_cast<std::size_t>(k * m + j)];
        const auto at = static_cast<std::size_t>(i * m + j);
        BOOST_REQUIRE(std::abs(result.matrix[at] - wanted) < 1e-5);
        BOOST_REQUIRE(std::abs(result.rest[at] - (before[at] - 0.25 * wanted)) < 1e-5);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(of_factors_that_are_not_valid_nothing_is_left_out) {
  const Matrix untouched(13 * 30, 5);
  for (const Expanded& result :
       {expanded(13, 30, 3, 1, 2), expanded(13, 30, 3, 1, 0, std::numeric_limits<float>::infinity())}) {
    BOOST_TEST(result.valid == 0);
    BOOST_TEST((result.rest == untouched));
  }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit_of_an_expansion) {
  const Expanded alone = expanded(500, 700, 4, 1), shared = expanded(500, 700, 4, 3);
  BOOST_TEST((alone.matrix == shared.matrix));
  BOOST_TEST((alone.rest == shared.rest));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
