// Cases of differentiable functions that are drawn from a printed seed, and their results at several numbers
// of threads.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "autograd/gradient_check.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::test {

/// The unsigned number of an environment variable, or another one.
inline unsigned number_from(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

class Draws {
 public:
  explicit Draws(unsigned seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  /// Of N(0, 1); ties: rounded to halves.
  Tensor tensor(const Shape& shape, bool ties = false) {
    const Tensor drawn = Tensor::empty(shape);
    std::normal_distribution<float> distribution;
    for (std::int64_t i = 0; i < drawn.numel(); ++i) {
      const float value = distribution(engine_);
      drawn.data<float>()[i] = ties ? std::round(2 * value) / 2 : value;
    }
    return drawn;
  }

 private:
  std::mt19937 engine_;
};

/// Calls body(draws) for LOCKSTEP_TEST_CASES cases (otherwise 24), the first of seed LOCKSTEP_TEST_SEED.
template <class Body>
void for_drawn_cases(const Body& body) {
  const unsigned first = number_from("LOCKSTEP_TEST_SEED", 20240229u),
                 cases = number_from("LOCKSTEP_TEST_CASES", 24);
  for (unsigned seed = first; seed < first + cases; ++seed) {
    BOOST_TEST_CONTEXT("LOCKSTEP_TEST_SEED=" << seed << " LOCKSTEP_TEST_CASES=1") {
      Draws draws(seed);
      body(draws);
    }
  }
}

/// The value of a function, and the gradients of its inputs.
struct Outcome {
  Tensor y;
  std::vector<Tensor> gradients;
};

inline Outcome outcome_of(const Function& function, const std::vector<Tensor>& inputs, const Tensor& dy,
                          int threads) {
  const auto backend = kernels::make_cpu_backend(threads);
  Tape tape(*backend);
  tape.begin({});
  std::vector<Var> in;
  for (const Tensor& input : inputs) in.push_back(tape.input(input));
  const Var y = to_channel_block(function(tape, in), 1);
  const auto copied = [](const Tensor& tensor) {
    const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
    if (tensor.numel() > 0) std::memcpy(copy.raw(), tensor.raw(), tensor.bytes());
    return copy;
  };
  Outcome outcome{copied(y.value()), {}};
  BOOST_REQUIRE_MESSAGE(y.shape() == dy.shape(), to_string(y.shape()) + " is not " + to_string(dy.shape()));
  tape.backward(y, dy);
  tape.finish_backward();
  for (const Var& x : in) outcome.gradients.push_back(copied(tape.gradient(x)));
  return outcome;
}

/// The outcome, which must have the same bits at 1 to 4 threads.
inline Outcome same_at_any_threads(const Function& function, const std::vector<Tensor>& inputs,
                                   const Tensor& dy) {
  const Outcome one = outcome_of(function, inputs, dy, 1);
  for (int threads = 2; threads <= 4; ++threads) {
    const Outcome other = outcome_of(function, inputs, dy, threads);
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
    };
    BOOST_TEST(same(one.y, other.y), "y has other bits at " << threads << " threads");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      BOOST_TEST(same(one.gradients[i], other.gradients[i]),
                 "the gradient of input " << i << " has other bits at " << threads << " threads");
  }
  return one;
}

inline std::vector<double> values_of(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

/// |found - wanted| <= 1e-5 max(1, m) + 1e-4 |wanted|, m the largest |wanted|.
inline void check_near(const std::vector<double>& found, const std::vector<double>& wanted,
                       const std::string& what) {
  BOOST_REQUIRE_EQUAL(found.size(), wanted.size());
  double most = 1;
  for (const double value : wanted) most = std::max(most, std::abs(value));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(found[i] - wanted[i]) <= 1e-5 * most + 1e-4 * std::abs(wanted[i])) continue;
    BOOST_ERROR(what << ": element " << i << " is " << found[i] << ", not " << wanted[i]);
    return;
  }
}

}  // namespace lockstep::test
