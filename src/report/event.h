// Event: what TensorBoard shows of one step, in the protocol buffers of its event files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "report/histogram.h"
#include "report/protobuf.h"

namespace lockstep::report {

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
