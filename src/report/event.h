// Event: what TensorBoard shows of one step, in the protocol buffers of its event files. Histogram: how
// values are distributed, in buckets as wide as an eighth of a power of two.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/protobuf.h"

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

/// Values of one step. Their tags are UTF-8; "GROUP/NAME" puts them into a group.
class Event {
 public:
  explicit Event(std::int64_t step) : step_(step) {}

  void add_scalar(std::string_view tag, double value);  ///< stored as float32
  /// Nothing is added for an empty histogram.
  void add_histogram(std::string_view tag, const Histogram& histogram);
  /// The bytes of a PNG file. UsageError if they are none.
  void add_image(std::string_view tag, std::string_view png);
  /// Shown as Markdown.
  void add_text(std::string_view tag, std::string_view markdown);

  std::int64_t step() const { return step_; }
  bool empty() const { return summary_.empty(); }
  /// The message, with the wall-clock time in seconds since 1970.
  std::string encoded(double time_s) const;

 private:
  std::int64_t step_;
  Message summary_;
};

/// Markdown that shows the text as it is.
std::string preformatted(std::string_view text);

/// The first event of every file.
std::string encoded_version(double time_s);
/// Says that a run starts again: readers forget what they have of this step and of later ones.
std::string encoded_restart(double time_s, std::int64_t step);

/// What is needed of an encoded event to decide whether it is kept.
struct EventView {
  std::int64_t step = 0;
  bool has_values = false;

  explicit EventView(std::string_view encoded);
  bool has_tag(std::string_view tag) const;

 private:
  std::string_view summary_;
};

}  // namespace lockstep::report
