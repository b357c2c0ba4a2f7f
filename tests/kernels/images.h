// Random images in any channel block, their plain double-precision twins, and comparisons: what the tests of
// image kernels share.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"

namespace lockstep::test {

/// Plain [N, C, H, W] in double precision, for naive references.
struct Images {
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  std::vector<double> values;

  Images(std::int64_t n_, std::int64_t c_, std::int64_t h_, std::int64_t w_)
      : n(n_), c(c_), h(h_), w(w_), values(static_cast<std::size_t>(n_ * c_ * h_ * w_)) {}
  double& at(std::int64_t i, std::int64_t ch, std::int64_t y, std::int64_t x) {
    return values[static_cast<std::size_t>(((i * c + ch) * h + y) * w + x)];
  }
  double at(std::int64_t i, std::int64_t ch, std::int64_t y, std::int64_t x) const {
    return values[static_cast<std::size_t>(((i * c + ch) * h + y) * w + x)];
  }
  Shape shape() const { return {n, c, h, w}; }
};

/// Draws; the seed is LOCKSTEP_TEST_SEED or a fixed one, and is printed with every failure (see SEEDED).
class Draws {
 public:
  Draws() : engine_(seed()) {}
  static unsigned seed() {
    const char* given = std::getenv("LOCKSTEP_TEST_SEED");
    return given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 20240229u;
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  /// A float32 value, so that tensors hold it exactly.
  double normal() { return std::normal_distribution<float>()(engine_); }
  std::vector<double> normals(std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = normal();
    return values;
  }
  Images images(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    Images drawn(n, c, h, w);
    drawn.values = normals(n * c * h * w);
    return drawn;
  }
  /// A channel block that images of c channels may be stored in.
  int block(std::int64_t c) { return one_of({1, 8, 8, 16, 3, static_cast<int>(c)}); }

 private:
  std::mt19937 engine_;
};

#define SEEDED BOOST_TEST_CONTEXT("LOCKSTEP_TEST_SEED=" << lockstep::test::Draws::seed())

inline std::size_t stored_place(const Images& images, int block, std::int64_t i, std::int64_t ch,
                                std::int64_t y, std::int64_t x) {
  const std::int64_t blocks = (images.c + block - 1) / block;
  return static_cast<std::size_t>(((((i * blocks + ch / block) * images.h + y) * images.w) + x) * block +
                                  ch % block);
}

template <class Body>
void for_each_place(const Images& images, const Body& body) {
  for (std::int64_t i = 0; i < images.n; ++i) {
    for (std::int64_t ch = 0; ch < images.c; ++ch) {
      for (std::int64_t y = 0; y < images.h; ++y) {
        for (std::int64_t x = 0; x < images.w; ++x) body(i, ch, y, x);
      }
    }
  }
}

/// In channel blocks, padding lanes zero; made without the kernels under test.
inline Tensor stored(kernels::Backend& backend, const Images& images, int block) {
  const Tensor tensor = backend.empty(images.shape(), DType::float32, block);
  float* to = tensor.data<float>();
  std::fill_n(to, tensor.stored_numel(), 0.0f);
  for_each_place(images, [&](auto i, auto ch, auto y, auto x) {
    to[stored_place(images, block, i, ch, y, x)] = static_cast<float>(images.at(i, ch, y, x));
  });
  return tensor;
}

inline Tensor stored(kernels::Backend& backend, const std::vector<double>& values, const Shape& shape) {
  const Tensor tensor = backend.empty(shape);
  std::transform(values.begin(), values.end(), tensor.data<float>(),
                 [](double v) { return static_cast<float>(v); });
  return tensor;
}

/// Memory that every lane of must be written: not a number everywhere.
inline Tensor unwritten(kernels::Backend& backend, const Shape& shape, int block = 1) {
  const Tensor tensor = backend.empty(shape, DType::float32, block);
  std::fill_n(tensor.data<float>(), tensor.stored_numel(), std::numeric_limits<float>::quiet_NaN());
  return tensor;
}

/// Back to plain doubles. Requires that padding lanes are zero.
template <class T = float>
Images loaded(const Tensor& tensor) {
  Images images(tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3));
  std::vector<bool> real(static_cast<std::size_t>(tensor.stored_numel()), false);
  const T* from = tensor.data<T>();
  for_each_place(images, [&](auto i, auto ch, auto y, auto x) {
    const std::size_t place = stored_place(images, tensor.channel_block(), i, ch, y, x);
    real[place] = true;
    images.at(i, ch, y, x) = static_cast<double>(from[place]);
  });
  bool padding_is_zero = true;
  for (std::size_t place = 0; place < real.size(); ++place) {
    padding_is_zero = padding_is_zero && (real[place] || from[place] == T{0});
  }
  BOOST_TEST(padding_is_zero, "a padding lane is not zero");
  return images;
}

template <class T = float>
std::vector<double> plain_values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

/// |a - b| <= 1e-5 max(1, m) + 1e-4 |b|, m the largest |b|.
inline void check_close(const std::vector<double>& actual, const std::vector<double>& expected) {
  BOOST_REQUIRE_EQUAL(actual.size(), expected.size());
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double allowed = 1e-5 * largest + 1e-4 * std::abs(expected[i]);
    if (!(std::abs(actual[i] - expected[i]) <= allowed)) {
      BOOST_TEST(false, "element " << i << " is " << actual[i] << ", not " << expected[i]);
      return;
    }
  }
}

inline void check_close(const Images& actual, const Images& expected) {
  BOOST_REQUIRE(actual.shape() == expected.shape());
  check_close(actual.values, expected.values);
}

}  // namespace lockstep::test
