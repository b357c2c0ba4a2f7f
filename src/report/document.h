// Private to the library: what all pages are made of. A page is one HTML file, which needs no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::report {

inline constexpr std::size_t most_page_bytes = 2'000'000;

/// "1,234,567".
std::string whole(std::int64_t value);
/// Four digits, or a whole number from 1,000 on.
std::string number(double value);

/// The text, or its first `most` bytes or a few less and an ellipsis.
std::string cut(std::string_view text, std::size_t most);

/// A <section> with a heading; empty without content.
std::string section(std::string_view title, const std::string& content);
/// A grey line below what it is about; as text, not as HTML.
std::string note(std::string_view text);

/// Names and values, both as text.
using Pairs = std::span<const std::pair<std::string, std::string>>;
/// The few values at the top of a page.
std::string facts(Pairs pairs);
/// A table of two columns; what has no value is left out.
std::string key_table(Pairs pairs);

/// The same of "section.key" and value: a table for each section, in two columns where there is room.
std::string configuration_html(Pairs pairs);

struct Cell {
  std::string text;
  std::optional<double> value = {};  ///< by which the column is sorted; the cell is set to the right
};
/// A number as text that can be sorted.
Cell cell(double value);
Cell cell(double value, std::string text);

/// A table that a click on a heading sorts.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}
  /// As many cells as headings.
  void add(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  std::string to_html() const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<Cell>> rows_;
};

struct Page {
  std::string title, lead;  ///< text
  std::string body;         ///< HTML: sections
  std::string footer;       ///< text
};
std::string to_html(const Page& page);

/// UsageError if `out` exists and is no page of ours, or cannot be made. Before the work.
void check_page(const std::string& out);
/// The same errors. An older page of that name is replaced.
void write_page(const std::string& out, const std::string& html);

}  // namespace lockstep::report
