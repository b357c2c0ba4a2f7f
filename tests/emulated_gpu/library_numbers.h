// Numbers for tests of the emulated libraries.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "emulated_gpu/library_memory.h"

namespace lockstep::test {

using emulated_gpu::Element;

/// Numbers of a fixed sequence, as a GPU's memory would hold them, 256-byte aligned.
class Numbers {
 public:
  Numbers(Element type, std::size_t count, std::uint32_t seed)
      : type_(type), count_(count), blocks_(count / numbers_a_block + 1) {
    std::uint32_t state = seed * 2654435761u + 1u;
    for (std::size_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      emulated_gpu::store(type, data(), i, static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
    }
  }
  /// All the same.
  Numbers(Element type, std::size_t count, float value) : Numbers(type, count, std::uint32_t{1}) {
    for (std::size_t i = 0; i < count; ++i) emulated_gpu::store(type, data(), i, value);
  }

  void* data() { return blocks_.data(); }
  float operator[](std::size_t i) { return emulated_gpu::load(type_, data(), i); }
  std::size_t size() const { return count_; }

 private:
  static constexpr std::size_t numbers_a_block = 64;
  struct alignas(256) Block {
    float numbers[numbers_a_block];
  };

  Element type_;
  std::size_t count_;
  std::vector<Block> blocks_;
};

inline void check_near(float value, double expected, double tolerance, std::size_t i) {
  BOOST_TEST(std::abs(static_cast<double>(value) - expected) <= tolerance * (1 + std::abs(expected)),
             "element " << i << " is " << value << ", not " << expected);
}

}  // namespace lockstep::test
