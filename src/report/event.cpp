#include "report/event.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::report {
namespace {

// Field numbers, from tensorboard/compat/proto/{event,summary,tensor}.proto.
namespace event {
constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session {
constexpr int status = 1;
constexpr std::int64_t start = 1;
}  // namespace session
namespace summary {
constexpr int value = 1;
}
namespace value {
constexpr int tag = 1, simple_value = 2, image = 4, histogram = 5, tensor = 8, metadata = 9;
}
namespace histogram_field {
constexpr int min = 1, max = 2, num = 3, sum = 4, sum_squares = 5, bucket_limit = 6, bucket = 7;
}
namespace image_field {
constexpr int height = 1, width = 2, colorspace = 3, encoded_image = 4;
}
namespace tensor {
constexpr int dtype = 1, shape = 2, string_value = 8, dimension = 2;
constexpr std::int64_t float_type = 1, string_type = 7;
}  // namespace tensor
namespace metadata {
constexpr int plugin_data = 1, plugin_name = 1, content = 2;
}
// From tensorboard/plugins/hparams/plugin_data.proto (HParamsPluginData, SessionStartInfo and its map,
// SessionEndInfo) and google/protobuf/struct.proto (Value).
namespace hparams {
constexpr int session_start = 3, session_end = 4, values = 1, start_time = 5, key = 1, value = 2;
constexpr int status = 1, end_time = 2, number = 2, text = 3, flag = 4;
constexpr std::int64_t success = 1, failure = 2;
}  // namespace hparams

Message event_message(double time_s, std::int64_t step) {
  Message message;
  message.add(event::wall_time, time_s);
  message.add(event::step, step);
  return message;
}

Message value_message(std::string_view tag) {
  Message message;
  message.add(value::tag, tag);
  return message;
}

}  // namespace

void Event::add_scalar(std::string_view tag, double number) {
  Message message = value_message(tag);
  message.add(value::simple_value, static_cast<float>(number));
  summary_.add(summary::value, message);
}

void Event::add_histogram(std::string_view tag, const Histogram& histogram) {
  if (histogram.count() == 0) return;
  const Histogram::Buckets buckets = histogram.buckets();
  Message content;
  content.add(histogram_field::min, histogram.min());
  content.add(histogram_field::max, histogram.max());
  content.add(histogram_field::num, static_cast<double>(histogram.count()));
  content.add(histogram_field::sum, histogram.sum());
  content.add(histogram_field::sum_squares, histogram.sum_squares());
  content.add_packed(histogram_field::bucket_limit, buckets.limits);
  content.add_packed(histogram_field::bucket, buckets.counts);
  Message message = value_message(tag);
  message.add(value::histogram, content);
  summary_.add(summary::value, message);
}

void Event::add_image(std::string_view tag, std::string_view png) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&header, png.data(), png.size()) == 0)
    throw UsageError("an image for TensorBoard must be a PNG file: {}", header.message);
  png_image_free(&header);
  Message content;
  content.add(image_field::height, std::int64_t{header.height});
  content.add(image_field::width, std::int64_t{header.width});
  content.add(image_field::colorspace, std::int64_t{PNG_IMAGE_SAMPLE_CHANNELS(header.format)});
  content.add(image_field::encoded_image, png);
  Message message = value_message(tag);
  message.add(value::image, content);
  summary_.add(summary::value, message);
}

void Event::add_text(std::string_view tag, std::string_view markdown) {
  Message content;
  content.add(tensor::dtype, tensor::string_type);
  content.add(tensor::shape, Message());  // a scalar: TensorBoard shows a vector as a table
  content.add(tensor::string_value, markdown);
  Message plugin, metadata_message;
  plugin.add(metadata::plugin_name, std::string_view("text"));
  metadata_message.add(metadata::plugin_data, plugin);
  Message message = value_message(tag);
  message.add(value::tensor, content);
  message.add(value::metadata, metadata_message);
  summary_.add(summary::value, message);
}

void Event::add_session(std::string_view tag, int field, const Message& content) {
  Message data, plugin, metadata_message, shape, nothing;
  data.add(field, content);
  plugin.add(metadata::plugin_name, std::string_view("hparams"));
  plugin.add(metadata::content, data);
  metadata_message.add(metadata::plugin_data, plugin);
  shape.add(tensor::dimension, Message());  // of no elements
  nothing.add(tensor::dtype, tensor::float_type);
  nothing.add(tensor::shape, shape);
  Message message = value_message(tag);
  message.add(value::tensor, nothing);
  message.add(value::metadata, metadata_message);
  summary_.add(summary::value, message);
}

void Event::add_session_start(std::span<const std::pair<std::string, std::string>> values) {
  Message content;
  for (const auto& [key, text] : values) {
    Message value, entry;
    if (double number = 0; parse_number(text, number))
      value.add(hparams::number, number);
    else if (text == "true" || text == "false")
      value.add(hparams::flag, std::int64_t{text == "true"});
    else
      value.add(hparams::text, text);
    entry.add(hparams::key, key);
    entry.add(hparams::value, value);
    content.add(hparams::values, entry);
  }
  content.add(hparams::start_time, static_cast<double>(std::time(nullptr)));
  add_session("_hparams_/session_start_info", hparams::session_start, content);
}

void Event::add_session_end(bool succeeded) {
  Message content;
  content.add(hparams::status, succeeded ? hparams::success : hparams::failure);
  content.add(hparams::end_time, static_cast<double>(std::time(nullptr)));
  add_session("_hparams_/session_end_info", hparams::session_end, content);
}

std::string Event::encoded(double time_s) const {
  Message message = event_message(time_s, step_);
  message.add(event::summary, summary_);
  return message.encoded();
}

std::string preformatted(std::string_view text) {
  std::string markdown;
  for (const std::string_view line : lines_of(text)) markdown += fmt::format("    {}\n", line);
  return markdown;
}

std::string encoded_version(double time_s) {
  Message message;
  message.add(event::wall_time, time_s);
  message.add(event::file_version, std::string_view("brain.Event:2"));
  return message.encoded();
}

std::string encoded_restart(double time_s, std::int64_t step) {
  Message log;
  log.add(session::status, session::start);
  Message message = event_message(time_s, step);
  message.add(event::session_log, log);
  return message.encoded();
}

EventView::EventView(std::string_view encoded) {
  Fields fields(encoded);
  while (const auto field = fields.next()) {
    if (field->number == event::step) step = static_cast<std::int64_t>(field->varint);
    if (field->number != event::summary) continue;
    summary_ = field->bytes;
    has_values = true;
  }
}

bool EventView::has_tag(std::string_view tag) const {
  Fields values(summary_);
  while (const auto one = values.next()) {
    Fields parts(one->bytes);
    while (const auto part = parts.next())
      if (part->number == value::tag && part->bytes == tag) return true;
  }
  return false;
}

namespace {

/// The lower bound of the magnitudes in the bucket with these highest bits, without the sign.
double magnitude_of(std::uint32_t bits, int dropped_bits) {
  const auto value = std::bit_cast<float>(bits << dropped_bits);
  return std::isfinite(value) ? value : std::ldexp(1.0, 128);  // beyond the largest float
}

}  // namespace

void Histogram::add(std::span<const float> values, double divisor) {
  for (const float value : values) {
    const double exact = static_cast<double>(value) / divisor;
    const float rounded = static_cast<float>(exact) + 0.0F;  // -0 becomes 0
    if (!std::isfinite(rounded)) continue;
    ++bucket_[std::bit_cast<std::uint32_t>(rounded) >> dropped_bits];
    ++count_;
    min_ = std::min(min_, exact);
    max_ = std::max(max_, exact);
    sum_ += exact;
    sum_squares_ += exact * exact;
  }
}

Histogram::Buckets Histogram::buckets() const {
  Buckets found;
  const auto take = [&](double low, double high, std::int64_t count) {
    if (count == 0) return;
    if (!found.limits.empty() && found.limits.back() < low) {  // an empty bucket fills the gap
      found.limits.push_back(low);
      found.counts.push_back(0);
    }
    found.limits.push_back(high);
    found.counts.push_back(static_cast<double>(count));
  };
  const auto magnitudes = static_cast<std::uint32_t>(bucket_.size() / 2);
  for (std::uint32_t bits = magnitudes - 1; bits-- > 0;)
    take(-magnitude_of(bits + 1, dropped_bits), 0.0 - magnitude_of(bits, dropped_bits),
         bucket_[magnitudes + bits]);
  for (std::uint32_t bits = 0; bits + 1 < magnitudes; ++bits)
    take(magnitude_of(bits, dropped_bits), magnitude_of(bits + 1, dropped_bits), bucket_[bits]);
  return found;
}

}  // namespace lockstep::report
