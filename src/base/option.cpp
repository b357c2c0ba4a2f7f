#include "lockstep/base/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// "0.5", "25", "1000000000000000", "1e+38": integers that float64 represents exactly are written out.
std::string bound_text(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 0x1p53 ? fmt::format("{:.0f}", bound)
                                                                : fmt::format("{:g}", bound);
}

bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }

/// Reads the quoted text that begins at `at`, the opening quote; moves `at` behind the closing one.
std::string read_quoted(const std::string& text, std::size_t& at) {
  const char mark = text[at];
  std::string found;
  for (++at; at < text.size() && text[at] != mark; ++at) {
    if (mark == '\'' || text[at] != '\\') {
      found += text[at];
      continue;
    }
    if (++at == text.size()) break;
    constexpr std::string_view letters = "ntr", escapes = "\n\t\r";
    unsigned number = 0;
    if (const std::size_t letter = letters.find(text[at]); letter != letters.npos) {
      found += escapes[letter];
    } else if (text[at] != 'x') {
      found += text[at];
    } else if (at + 2 < text.size() &&
               std::from_chars(&text[at + 1], &text[at + 3], number, 16).ptr == &text[at + 3]) {
      found += static_cast<char>(number);
      at += 2;
    } else {
      throw UsageError("{}: \\x needs two hexadecimal digits", quote(text));
    }
  }
  if (at >= text.size()) throw UsageError("{}: the quote {} is not closed", quote(text), mark);
  ++at;
  return found;
}

/// In double quotes, without '#': an INI file's lines end there.
std::string quoted(const std::string& text) { return '"' + escaped(text, "#") + '"'; }

/// Parses the whole text as a number. An integer may be written as 1e3 or 2.5e3.
template <class Number>
bool parse(std::string_view text, Number& number) {
  if (parse_number(text, number)) return true;
  if constexpr (std::integral<Number>) {
    double value = 0;
    if (!parse_number(text, value)) return false;
    const bool fits = value == std::floor(value) && std::abs(value) < 0x1p53 &&
                      value >= static_cast<double>(std::numeric_limits<Number>::min()) &&
                      value <= static_cast<double>(std::numeric_limits<Number>::max());
    if (fits) number = static_cast<Number>(value);
    return fits;
  }
  return false;
}

template <class Number>
void read_number(const std::string& text, const Range& range, Number& value) {
  if (range.word && text == range.word) {
    value = static_cast<Number>(range.word_value);
    return;
  }
  Number number{};
  if (!parse(text, number) || !range.contains(static_cast<double>(number))) {
    throw UsageError("{} is not {}a {}number in {}{}", quote(text),
                     range.word ? fmt::format("{} or ", range.word) : "",
                     std::integral<Number> ? "whole " : "",
                     Range{range.low, range.high, range.low_open, range.high_open, range.or_zero}.text(),
                     text.find(',') == text.npos
                         ? ""
                         : "; values of a list are separated by blanks, and decimals have a point");
  }
  value = number;
}

template <class Number>
std::string print_number(Number value, const Range& range) {
  if (range.word && static_cast<double>(value) == range.word_value) return range.word;
  return fmt::format("{}", value);
}

}  // namespace

bool Range::contains(double value) const {
  if (or_zero && value == 0) return true;
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  return fmt::format("{}{}{}{}{}, {}{}", word ? word : "", word ? " or " : "", or_zero ? "0 or " : "",
                     low_open ? '(' : '[', bound_text(low), bound_text(high), high_open ? ')' : ']');
}

std::string OptionText::form() const {
  const bool is_number = kind.ends_with("number") || kind == "numbers";
  std::string form = is_number && !allowed.empty() ? kind + " in " + allowed
                     : allowed.empty()             ? kind
                                                   : allowed;
  if (*traits.unit != '\0') form += fmt::format("; {}", traits.unit);
  return form;
}

std::string IniLine::name() const {
  return section.empty() ? std::string(key) : std::string(section) + "." + std::string(key);
}

namespace {

/// The line up to its comment. A '#' in quotes, which begin a word of the value, begins no comment; nor does
/// one behind an open quote.
std::string_view without_comment(std::string_view line) {
  std::size_t at = line.find_first_of("#=");
  if (at == line.npos) return line;
  if (line[at] == '=') ++at;
  for (bool in_word = false; at < line.size() && line[at] != '#'; ++at) {
    const char mark = line[at];
    if (in_word || (mark != '"' && mark != '\'')) {
      in_word = mark != ' ' && mark != '\t';
      continue;
    }
    for (++at; at < line.size() && line[at] != mark; ++at)
      if (mark == '"' && line[at] == '\\') ++at;
    in_word = true;
  }
  return line.substr(0, at);
}

}  // namespace

std::vector<IniLine> ini_lines(std::string_view text) {
  std::vector<IniLine> found;
  std::string_view section;
  int count = 0;
  for (const std::string_view whole : lines_of(text)) {
    ++count;
    const std::string_view line = without_blanks(without_comment(whole));
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    IniLine& next = found.emplace_back(IniLine{.number = count, .section = section, .key = line});
    if (line.front() == '[' && line.back() == ']') {
      next.kind = IniLine::Kind::section;
      next.section = section = line.substr(1, line.size() - 2);
    } else if (equals != line.npos) {
      next.kind = IniLine::Kind::key;
      next.key = without_blanks(line.substr(0, equals));
      next.value = without_blanks(line.substr(equals + 1));
    }
  }
  return found;
}

namespace option {

std::string unquoted(const std::string& value) {
  if (value.empty() || (value[0] != '"' && value[0] != '\'')) return value;
  std::size_t at = 0;
  std::string found = read_quoted(value, at);
  if (at != value.size()) throw UsageError("{}: there is text behind the closing quote", quote(value));
  return found;
}

std::vector<std::string> words_of(const std::string& values) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < values.size();) {
    if (is_blank(values[at])) {
      ++at;
    } else if (values[at] == '"' || values[at] == '\'') {
      words.push_back(read_quoted(values, at));
      if (at < values.size() && !is_blank(values[at]))
        throw UsageError("{}: there is text behind the closing quote", quote(values));
    } else {
      const std::size_t end = std::min(values.find_first_of(" \t", at), values.size());
      words.push_back(values.substr(at, end - at));
      at = end;
    }
  }
  return words;
}

std::string printed(const std::string& text, bool in_list) {
  const bool plain = is_printable(text) && text.find_first_of(in_list ? "#\"' " : "#\"'") == text.npos &&
                     !text.starts_with(' ') && !text.ends_with(' ') && !(in_list && text.empty());
  return plain ? text : quoted(text);
}

void read(const std::string& text, const Range& range, double& value) { read_number(text, range, value); }
void read(const std::string& text, const Range& range, int& value) { read_number(text, range, value); }
void read(const std::string& text, const Range& range, std::int64_t& value) {
  read_number(text, range, value);
}
void read(const std::string& text, const Range& range, std::uint64_t& value) {
  read_number(text, range, value);
}

bool read_flag(const std::string& text) {
  if (text == "true" || text == "True") return true;  // Python prints the latter
  if (text == "false" || text == "False") return false;
  throw UsageError("{} is neither true nor false", quote(text));
}

void check_word(const std::string& text, const std::vector<std::string>& words) {
  if (std::ranges::find(words, text) != words.end()) return;
  const std::string nearest = nearest_name(text, words);
  throw UsageError("{} is not one of: {}{}", quote(text), fmt::join(words, ", "),
                   nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

std::string print(double value, const Range& range) { return print_number(value, range); }
std::string print(std::int64_t value, const Range& range) { return print_number(value, range); }
std::string print(std::uint64_t value, const Range& range) { return print_number(value, range); }

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace option
}  // namespace lockstep
