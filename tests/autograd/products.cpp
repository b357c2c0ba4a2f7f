// Products of matrices: gradients against differences, and errors.
#include <boost/test/unit_test.hpp>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(products)

using Vars = std::vector<Var>;

Var product(Tape&, const Vars& x) { return matmul(x[0], x[1]); }

BOOST_AUTO_TEST_CASE(gradients_of_matmul_are_summed_over_what_was_broadcast) {
  struct Shapes {
    Shape a, b;
  };
  for (const Shapes& s : {Shapes{{3, 4}, {4, 2}},
                          {{2, 3, 4}, {2, 4, 2}},
                          {{2, 3, 4}, {4, 2}},
                          {{3, 4}, {2, 4, 2}},
                          {{2, 1, 3, 4}, {3, 4, 2}},
                          {{2, 1, 1, 4}, {1, 3, 4, 1}},
                          {{2, 0, 4}, {2, 4, 3}}}) {
    BOOST_TEST_CONTEXT(to_string(s.a) << " by " << to_string(s.b))
    check_gradients(product, {normal_tensor(s.a, 1), normal_tensor(s.b, 2)});
  }
}

BOOST_AUTO_TEST_CASE(matmul_over_nothing_is_zero) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const Tensor y = matmul(tape.input(Tensor::empty({2, 3, 0})), tape.input(Tensor::empty({0, 2}))).value();
  BOOST_TEST(y.shape().numel() == 12);
  for (std::int64_t i = 0; i < y.numel(); ++i) BOOST_TEST(y.data<float>()[i] == 0.0f);
}

BOOST_AUTO_TEST_CASE(matrices_that_do_not_fit_are_usage_errors) {
  const auto backend = kernels::make_cpu_backend();
  Tape tape(*backend);
  tape.begin({});
  const auto input = [&](Shape shape) { return tape.input(Tensor::zeros(shape)); };
  BOOST_CHECK_THROW(matmul(input({2, 3}), input({2, 3})), UsageError);
  BOOST_CHECK_THROW(matmul(input({3}), input({3, 2})), UsageError);
  BOOST_CHECK_THROW(matmul(input({2, 2, 3}), input({3, 3, 2})), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
