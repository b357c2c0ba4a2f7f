// Event: the values of one step for TensorBoard, encoded as a protocol buffer of its event files. Histogram:
// the distribution of values, in eight buckets per power of two.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/protobuf.h"

namespace lockstep::report {

/// Counts values in buckets. Number, minimum, maximum, sum and sum of squares are exact: in float64, in the
/// order of the calls. Ignores non-finite values.
///
/// The values of a bucket, rounded to float32, agree in sign, exponent and the three highest bits of the
/// mantissa, so a shift finds it. Its bounds are 6 to 13 % apart.
class Histogram {
 public:
  /// Adds each value divided by `divisor`.
  void add(std::span<const float> values, double divisor = 1);

  std::int64_t count() const { return count_; }
  double min() const { return min_; }  ///< infinite if the histogram is empty, as is max()
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_squares() const { return sum_squares_; }

  /// Buckets with ascending upper limits, from the minimum to the maximum. Adjacent empty buckets are merged.
  struct Buckets {
    std::vector<double> limits, counts;
  };
  Buckets buckets() const;

 private:
  static constexpr int dropped_bits = 20;  // of 32: keeps 3 bits of the mantissa, and 9 of sign and exponent

  std::array<std::int64_t, std::size_t{1} << (32 - dropped_bits)> bucket_{};  // by the remaining bits
  std::int64_t count_ = 0;
  double min_ = std::numeric_limits<double>::infinity(), max_ = -min_;
  double sum_ = 0, sum_squares_ = 0;
};

/// Values of one step. Their tags are UTF-8; "GROUP/NAME" puts them into a group.
class Event {
 public:
  explicit Event(std::int64_t step) : step_(step) {}

  void add_scalar(std::string_view tag, double value);  ///< stored as float32
  /// An empty histogram adds nothing.
  void add_histogram(std::string_view tag, const Histogram& histogram);
  /// `png`: the bytes of a PNG file; UsageError if they are not.
  void add_image(std::string_view tag, std::string_view png);
  /// TensorBoard shows the text as Markdown.
  void add_text(std::string_view tag, std::string_view markdown);
  /// The keys and values of a run, and how it ended, for TensorBoard's table of runs (HPARAMS). It takes the
  /// first start of a run, and the last value of each scalar.
  void add_session_start(std::span<const std::pair<std::string, std::string>> values);
  void add_session_end(bool succeeded);

  std::int64_t step() const { return step_; }
  bool empty() const { return summary_.empty(); }
  /// The message, with the wall-clock time in seconds since 1970.
  std::string encoded(double time_s) const;

 private:
  void add_session(std::string_view tag, int field, const Message& content);

  std::int64_t step_;
  Message summary_;
};

/// Markdown that shows the text verbatim.
std::string preformatted(std::string_view text);

/// The first event of every file.
std::string encoded_version(double time_s);
/// An event that marks a restart: readers discard events of this step and of later ones.
std::string encoded_restart(double time_s, std::int64_t step);

/// The parts of an encoded event that decide whether a restart keeps it.
struct EventView {
  std::int64_t step = 0;
  bool has_values = false;

  explicit EventView(std::string_view encoded);
  bool has_tag(std::string_view tag) const;

 private:
  std::string_view summary_;
};

}  // namespace lockstep::report
