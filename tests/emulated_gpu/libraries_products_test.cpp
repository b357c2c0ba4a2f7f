// Products of matrices by the emulated cuBLASLt, as Matmul asks for them, against sums written out; and what
// it refuses.
#include <cuda_runtime_api.h>

#include "emulated_gpu/library_numbers.h"
#include "kernels/cuda/matmul.h"

namespace lockstep::test {
namespace {

struct ProductsGpu {
  ProductsGpu() : pool(0), matmul(0, pool) {}
  void multiply(const kernels::Product& product) { BOOST_REQUIRE(matmul.try_multiply(product)); }
  void wait() { BOOST_REQUIRE(cudaStreamSynchronize(pool.stream()) == cudaSuccess); }

  kernels::StreamPool pool;
  kernels::Matmul matmul;
};

BOOST_FIXTURE_TEST_SUITE(libraries_products_test, ProductsGpu)

using kernels::DeviceMatrix;
using kernels::Epilogue;
using kernels::Product;

constexpr std::int64_t m = 5, n = 16, k = 13;

Element element_of(DType dtype) { return dtype == DType::bfloat16 ? Element::bfloat16 : Element::float32; }

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

/// A, B and C of the sizes above, and what is in A B.
struct Case {
  Case(DType in_type, DType out_type, bool turned_a, bool turned_b)
      : in(in_type),
        out(out_type),
        a_turned(turned_a),
        b_turned(turned_b),
        a(element_of(in), m * k, 1u),
        b(element_of(in), k * n, 2u),
        c(element_of(out), m * n, 3u),
        bias(element_of(out), n, 4u),
        before(element_of(out), m * n, 5u) {}

  DeviceMatrix left() { return {a.data(), a_turned ? m : k, a_turned}; }
  DeviceMatrix right() { return {b.data(), b_turned ? k : n, b_turned}; }
  Product with(const Epilogue& epilogue) {
    return {.m = m,
            .n = n,
            .k = k,
            .in = in,
            .a = left(),
            .b = right(),
            .out = out,
            .c = c.data(),
            .epilogue = epilogue};
  }
  double a_at(std::int64_t i, std::int64_t l) {
    return static_cast<double>(a[static_cast<std::size_t>(a_turned ? l * m + i : i * k + l)]);
  }
  double product(std::int64_t i, std::int64_t j) {
    double sum = 0;
    for (std::int64_t l = 0; l < k; ++l)
      sum += a_at(i, l) * static_cast<double>(b[static_cast<std::size_t>(b_turned ? j * k + l : l * n + j)]);
    return sum;
  }
  /// C against wanted(i, j).
  template <class Wanted>
  void check(Numbers& numbers, const Wanted& wanted) {
    const double tolerance = out == DType::bfloat16 ? 8e-3 : 1e-5;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<std::size_t>(i * n + j);
        check_near(numbers[at], wanted(i, j), tolerance, at);
      }
    }
  }

  DType in, out;
  bool a_turned, b_turned;
  Numbers a, b, c, bias, before;
};

template <class Call>
void for_cases(const Call& call) {
  for (const auto& [in, out] : {std::pair{DType::float32, DType::float32},
                                {DType::bfloat16, DType::bfloat16},
                                {DType::bfloat16, DType::float32}}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) call(Case(in, out, a_turned, b_turned));
    }
  }
}

BOOST_AUTO_TEST_CASE(are_sums_of_products_of_rows_and_columns_and_of_what_was_there) {
  for_cases([&](Case one) {
    for (const bool accumulate : {false, true}) {
      Case given = one;
      Product product = one.with({});
      product.accumulate = accumulate;
      multiply(product);
      wait();
      one.check(one.c, [&](std::int64_t i, std::int64_t j) {
        const auto at = static_cast<std::size_t>(i * n + j);
        return one.product(i, j) + (accumulate ? static_cast<double>(given.c[at]) : 0);
      });
    }
  });
}

BOOST_AUTO_TEST_CASE(leave_what_is_between_rows_that_are_apart) {
  for_cases([&](Case one) {
    constexpr std::int64_t stride = n + 8;
    Numbers apart(element_of(one.out), m * stride, 7u);
    Numbers before = apart;
    Product product = one.with({});
    product.c = apart.data();
    product.c_stride = stride;
    multiply(product);
    multiply(one.with({}));
    wait();
    for (std::size_t at = 0; at < apart.size(); ++at) {
      const std::size_t row = at / stride, column = at % stride;
      BOOST_TEST(apart[at] == (column < n ? one.c[row * n + column] : before[at]));
    }
  });
}

BOOST_AUTO_TEST_CASE(take_a_bias) {
  for_cases([&](Case one) {
    multiply(one.with({.kind = Epilogue::Kind::bias, .bias = one.bias.data()}));
    wait();
    one.check(one.c, [&](std::int64_t i, std::int64_t j) {
      return one.product(i, j) + static_cast<double>(one.bias[static_cast<std::size_t>(j)]);
    });
  });
}

BOOST_AUTO_TEST_CASE(take_a_gelu_and_keep_what_it_is_of) {
  for_cases([&](Case one) {
    multiply(one.with({.kind = Epilogue::Kind::gelu, .bias = one.bias.data(), .before = one.before.data()}));
    wait();
    const auto sum = [&](std::int64_t i, std::int64_t j) {
      return one.product(i, j) + static_cast<double>(one.bias[static_cast<std::size_t>(j)]);
    };
    one.check(one.before, sum);
    one.check(one.c, [&](std::int64_t i, std::int64_t j) { return gelu(sum(i, j)); });
  });
}

BOOST_AUTO_TEST_CASE(take_the_slope_of_a_gelu) {
  for_cases([&](Case one) {
    multiply(one.with({.kind = Epilogue::Kind::gelu_slope, .before = one.before.data()}));
    wait();
    one.check(one.c, [&](std::int64_t i, std::int64_t j) {
      const double x = static_cast<double>(one.before[static_cast<std::size_t>(i * n + j)]), step = 1e-5;
      return one.product(i, j) * (gelu(x + step) - gelu(x - step)) / (2 * step);
    });
  });
}

BOOST_AUTO_TEST_CASE(sum_the_rows_of_a_transposed_matrix_beside_the_product) {
  Case one(DType::bfloat16, DType::float32, true, false);
  Numbers sums(Element::float32, m, 0.0f);
  multiply(one.with({.kind = Epilogue::Kind::bias_gradient, .bias = sums.data()}));
  wait();
  one.check(one.c, [&](std::int64_t i, std::int64_t j) { return one.product(i, j); });
  for (std::int64_t i = 0; i < m; ++i) {
    double wanted = 0;
    for (std::int64_t l = 0; l < k; ++l) wanted += one.a_at(i, l);
    check_near(sums[static_cast<std::size_t>(i)], wanted, 1e-5, static_cast<std::size_t>(i));
  }
}

// 1030 ones: in parts of 257 and 258 that are rounded to bf16, 1024.
BOOST_AUTO_TEST_CASE(are_rounded_once_however_long_the_sum) {
  constexpr std::size_t length = 1030;
  Numbers ones(Element::bfloat16, length, 1.0f), sum(Element::bfloat16, 1, 0.0f);
  multiply({.m = 1,
            .n = 1,
            .k = length,
            .in = DType::bfloat16,
            .a = {ones.data(), length},
            .b = {ones.data(), 1},
            .out = DType::bfloat16,
            .c = sum.data()});
  wait();
  BOOST_TEST(sum[0] == 1032.0f);
}

// The problem is the same: 16 bytes is the least alignment in both.
BOOST_AUTO_TEST_CASE(find_an_algorithm_that_serves_every_bias_of_the_problem) {
  Case one(DType::float32, DType::float32, false, false);
  Numbers more(Element::float32, m * k + 8, 1u), biases(Element::float32, n + 4, 4u);
  const auto multiply_by = [&](void* a, void* bias) {
    Product product = one.with({.kind = Epilogue::Kind::bias, .bias = bias});
    product.a.data = a;
    multiply(product);
    wait();
  };
  multiply_by(static_cast<float*>(more.data()) + 4, one.bias.data());
  BOOST_CHECK_NO_THROW(multiply_by(more.data(), static_cast<float*>(biases.data()) + 4));
}

// A flat buffer places tensors at multiples of 64 bytes, the pool at those of 256.
BOOST_AUTO_TEST_CASE(have_the_same_bits_wherever_a_tensor_lies) {
  Case one(DType::float32, DType::float32, false, false);
  multiply(one.with({}));
  for (const std::size_t elsewhere : {16, 32}) {
    Numbers room(Element::float32, elsewhere + m * n, 6u);
    Product product = one.with({});
    product.c = static_cast<float*>(room.data()) + elsewhere;
    multiply(product);
    wait();
    for (std::size_t i = 0; i < one.c.size(); ++i) BOOST_TEST(room[elsewhere + i] == one.c[i]);
  }
}

BOOST_AUTO_TEST_CASE(of_types_that_are_not_in_the_table_are_refused) {
  Case one(DType::float32, DType::bfloat16, false, false);
  BOOST_TEST(!matmul.try_multiply(one.with({})));
}

BOOST_AUTO_TEST_CASE(with_a_gelu_are_refused_for_rows_that_are_not_packs_of_eight) {
  Case one(DType::bfloat16, DType::bfloat16, false, false);
  Product product = one.with({.kind = Epilogue::Kind::gelu, .before = one.before.data()});
  product.n = product.c_stride = 15;
  BOOST_TEST(!matmul.try_multiply(product));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
