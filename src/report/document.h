// Private to the library: what all pages are made of. A page is one HTML file, which needs no network: title,
// facts and footer as HTML, and a document as JSON, which the script of every page draws. assets/page.js says
// what a document may have; here is what makes its parts. A part without content is null, and left out.
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

inline constexpr std::size_t max_page_bytes = 2'000'000;

/// "1,234,567".
std::string whole(std::int64_t value);
/// Four digits, or a whole number from 1,000 on.
std::string number(double value);
/// "1000 B", "64 KiB", "25 MiB": four digits.
std::string bytes_text(double bytes);
/// The text, or its first `most` bytes or a few less and an ellipsis.
std::string cut(std::string_view text, std::size_t most);

/// Names and values, both as text.
using Pairs = std::vector<std::pair<std::string, std::string>>;

json section(std::string_view title, std::vector<json> parts);
/// A grey line below what it is about.
json note(std::string_view text);
/// A table of two columns; what has no value is left out.
json key_table(const Pairs& pairs);
/// The same of "section.key" and value: a table for each section, in two columns where there is room.
json configuration(const Pairs& pairs);
/// A table that a click on a heading sorts. A cell is a text, a number or null.
json table(json columns, json rows);

struct Bar {
  std::string name, kind;  ///< kind: CSS class: "", "step", "comm", "late" or "other"
  double length = 0;
  std::string text = {};  ///< beside it
};
/// Bars from 0 on, a row each.
json bars(std::string_view title, std::string_view unit, const std::vector<Bar>& all);

struct Points {
  std::vector<double> x, y;  ///< x never decreases, and is whole
};
/// At most `most` points (4 or more), among them the first, the last, and the least and the greatest of each
/// of equal parts: no peak is lost.
Points reduced(const Points& points, std::size_t most);
/// Means over a window of a twenty-fifth of the points, at most `most` of them.
Points smoothed(const Points& points, std::size_t most);
/// A line of a chart, of one point or more. `style`: CSS classes, "c0 dashed". Values are exact to a
/// millionth of their range, or of that of their logarithms where the greatest is more than 50 times the
/// least.
json curve(std::string_view label, std::string_view style, const Points& points);

/// The page. `document` has a title, a lead, facts, sections and a footer; nulls among the sections are left
/// out.
std::string to_html(json document);

/// UsageError if `out` exists and is no page of ours, or cannot be made. Before the work.
void check_page(const std::string& out);
/// The same errors. An older page of that name is replaced.
void write_page(const std::string& out, const json& document);

}  // namespace lockstep::report
