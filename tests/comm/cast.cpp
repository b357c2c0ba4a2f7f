// The 16-bit formats that nodes may send: every value, and rounding to the nearest.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "comm/cpu_sums.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(cast)

constexpr std::uint32_t all_values = 1u << 16;

/// The value as IEEE 754 defines it: `exponent_bits`, the rest of the 15 for the fraction.
double meaning_of(std::uint32_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> fraction_bits);
  const auto fraction = static_cast<double>(bits & ((1u << fraction_bits) - 1));
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  const double significand = std::ldexp(fraction, -fraction_bits) + (exponent > 0 ? 1.0 : 0.0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}

struct Format {
  const char* name;
  int exponent_bits;
  std::uint16_t (*from)(float);
  float (*to)(std::uint16_t);
};
const std::vector<Format> formats = {{"bfloat16", 8, bfloat16_bits, from_bfloat16_bits},
                                     {"float16", 5, float16_bits, from_float16_bits}};

BOOST_AUTO_TEST_CASE(every_16_bit_value_means_what_ieee_says_and_comes_back) {
  for (const Format& format : formats) {
    BOOST_TEST_CONTEXT(format.name) {
      for (std::uint32_t bits = 0; bits < all_values; ++bits) {
        const double meaning = meaning_of(bits, format.exponent_bits);
        const float value = format.to(static_cast<std::uint16_t>(bits));
        if (std::isnan(meaning)) {
          BOOST_TEST_REQUIRE(std::isnan(value));
          BOOST_TEST_REQUIRE(std::isnan(format.to(format.from(value))));
        } else {
          BOOST_TEST_REQUIRE(value == meaning);
          BOOST_TEST_REQUIRE(std::signbit(value) == std::signbit(meaning));
          BOOST_TEST_REQUIRE(format.from(value) == bits);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(between_two_values_the_nearer_is_taken_and_in_the_middle_the_even_one) {
  for (const Format& format : formats) {
    BOOST_TEST_CONTEXT(format.name) {
      const std::uint32_t infinity = ((1u << format.exponent_bits) - 1) << (15 - format.exponent_bits);
      for (std::uint32_t bits = 0; bits < infinity; ++bits) {
        const double below = meaning_of(bits, format.exponent_bits);
        // What would follow the largest finite value stands for infinity.
        const double above = bits + 1 < infinity
                                 ? meaning_of(bits + 1, format.exponent_bits)
                                 : below + (below - meaning_of(bits - 1, format.exponent_bits));
        const auto middle = static_cast<float>((below + above) / 2);
        if (static_cast<double>(middle) != (below + above) / 2) continue;  // below float32's own subnormals
        BOOST_TEST_REQUIRE(format.from(middle) == bits + bits % 2);
        BOOST_TEST_REQUIRE(format.from(std::nextafter(middle, 0.0f)) == bits);
        BOOST_TEST_REQUIRE(format.from(std::nextafter(middle, INFINITY)) == bits + 1);
        BOOST_TEST_REQUIRE(format.from(-middle) == (0x8000u | (bits + bits % 2)));
      }
      BOOST_TEST(format.from(INFINITY) == infinity);
      BOOST_TEST(format.from(std::numeric_limits<float>::max()) == infinity);
    }
  }
}

BOOST_AUTO_TEST_CASE(arrays_are_converted_in_place_too) {
  std::mt19937_64 random(3);
  for (const DType comm_dtype : {DType::bfloat16, DType::float16}) {
    for (const std::size_t count : {0u, 1u, 7u, 1023u, 1024u, 1025u, 5000u}) {
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 7.0f;
      std::vector<float> expected = values;
      for (float& value : expected) {
        value = comm_dtype == DType::bfloat16 ? from_bfloat16_bits(bfloat16_bits(value))
                                              : from_float16_bits(float16_bits(value));
      }
      const auto elements = static_cast<std::int64_t>(count);
      std::vector<float> rounded = values;
      comm::round_to(comm_dtype, reinterpret_cast<std::byte*>(rounded.data()), elements);
      BOOST_TEST((rounded == expected));

      auto* bytes = reinterpret_cast<std::byte*>(values.data());
      comm::cast_to(bytes, bytes, elements, comm_dtype);
      std::memmove(bytes + 2 * count, bytes, 2 * count);
      comm::cast_from(bytes + 2 * count, bytes, elements, comm_dtype);
      BOOST_TEST((values == expected));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
