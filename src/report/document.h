// Private to the library: the parts of a document, the JSON that the script of a page draws (page.h).
// assets/page.js describes what a document may contain. A part without content is null, and pages omit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::report {

using nlohmann::json;

inline constexpr std::size_t max_value_bytes = 1'000;  ///< of a value in a table

/// "1,234,567".
std::string whole(std::int64_t value);
/// Four digits, or a whole number from 1,000 on.
std::string number(double value);
/// "1000 B", "64 KiB", "25 MiB": four digits.
std::string bytes_text(double bytes);
/// The text if it has at most max_bytes, else its first max_bytes (or up to 3 fewer, to keep whole letters)
/// and an ellipsis.
std::string cut(std::string_view text, std::size_t max_bytes);

/// Names and values.
using Pairs = std::vector<std::pair<std::string, std::string>>;

json section(std::string_view title, std::vector<json> parts);
/// A grey line of text below another part.
json note(std::string_view text);
/// A table of names and values; it omits empty values.
json key_table(const Pairs& pairs);
/// A table for each section, from pairs of "section.key" and value; side by side if the page is wide enough.
json configuration(const Pairs& pairs);
/// A table that sorts when the user clicks on a heading. A cell is a text, a number or null.
json table(json columns, json rows);

struct Bar {
  std::string name, kind;  ///< kind: the CSS class: "", "step", "comm", "late" or "other"
  double length = 0;
  std::string text = {};  ///< next to the bar; empty: its length
};
/// Bars that start at 0, one per row.
json bars(std::string_view title, std::string_view unit, const std::vector<Bar>& all);

struct Points {
  std::vector<double> x, y;  ///< x holds integers and never decreases
};
/// At most max_count (4 or more) of the points: the first, the last, and the minimum and maximum of each of
/// several equal parts, so that no peak is lost.
Points reduce(const Points& points, std::size_t max_count);
/// At most max_count means over a sliding window of 1/25 of the points.
Points smooth(const Points& points, std::size_t max_count);
/// A line of a chart, with one point or more. `style`: CSS classes, "c0 dashed". Values are exact to 1e-6 of
/// their range; of the range of their logarithms if the maximum is more than 50 times the minimum.
json curve(std::string_view label, std::string_view style, const Points& points);

}  // namespace lockstep::report
