// What kernel tests share: random tensors from a printed seed, and comparison with double-precision
// references.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "lockstep/kernels/backend.h"

namespace lockstep::test {

/// Draws tensors; the seed of a case is in the report of a failure.
class Draw {
 public:
  explicit Draw(unsigned seed) : generator_(seed) { BOOST_TEST_MESSAGE("seed " << seed); }

  Tensor normal(Shape shape, float spread = 1) {
    Tensor tensor = Tensor::empty(shape);
    std::normal_distribution<float> distribution(0, spread);
    for (float& x : floats(tensor)) x = distribution(generator_);
    return tensor;
  }
  Tensor indices(Shape shape, std::int64_t bound) {
    Tensor tensor = Tensor::empty(shape, DType::int64);
    std::uniform_int_distribution<std::int64_t> distribution(0, bound - 1);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<std::int64_t>()[i] = distribution(generator_);
    return tensor;
  }
  std::int64_t below(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(generator_);
  }

  static std::span<float> floats(const Tensor& tensor) {
    return {tensor.data<float>(), static_cast<std::size_t>(tensor.stored_numel())};
  }

 private:
  std::mt19937 generator_;
};

inline std::span<float> floats(const Tensor& tensor) { return Draw::floats(tensor); }

inline Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
  copy_elements(tensor, copy);
  return copy;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// Every element within 1e-5 max(1, m) + 1e-4 |reference|, m the largest magnitude of the reference.
inline void check_close(const Tensor& result, const std::vector<double>& reference, const char* what) {
  BOOST_REQUIRE_EQUAL(static_cast<std::size_t>(result.numel()), reference.size());
  double most = 1;
  for (const double value : reference) most = std::max(most, std::abs(value));
  const auto values = floats(result);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(values[i] - reference[i]);
    if (error <= 1e-5 * most + 1e-4 * std::abs(reference[i])) continue;
    BOOST_ERROR(what << ": element " << i << " is " << values[i] << ", not " << reference[i]);
    return;
  }
}

}  // namespace lockstep::test
