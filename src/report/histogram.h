// Histogram: how values are distributed, in buckets as wide as an eighth of a power of two.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lockstep::report {

/// Counts values in buckets, and keeps what is exact: their number, least, greatest, sum and sum of squares
/// in float64, added in the order in which they come. Values that are not finite are left out.
///
/// A bucket holds the values that, rounded to float32, agree in sign, exponent and the three highest bits of
/// the mantissa: to find it takes a shift. Its bounds are 6 to 13 % apart.
class Histogram {
 public:
  /// Adds each value divided by `divisor`.
  void add(std::span<const float> values, double divisor = 1);

  std::int64_t count() const { return count_; }
  double min() const { return min_; }  ///< infinite if the histogram is empty, as is max()
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_squares() const { return sum_squares_; }

  /// From the least value to the greatest, by upper limits, which ascend. A run of empty buckets is one.
  struct Buckets {
    std::vector<double> limits, counts;
  };
  Buckets buckets() const;

 private:
  static constexpr int dropped_bits = 20;  // of the 23 of the mantissa and 9 of sign and exponent

  std::array<std::int64_t, std::size_t{1} << (32 - dropped_bits)> bucket_{};  // by the bits that are left
  std::int64_t count_ = 0;
  double min_ = std::numeric_limits<double>::infinity(), max_ = -min_;
  double sum_ = 0, sum_squares_ = 0;
};

}  // namespace lockstep::report
