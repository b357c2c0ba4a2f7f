// Separators, quotes and headings.
#include "data/csv_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool is_number(std::string_view field) {
  double ignored = 0;
  return parse_number(field, ignored) && !is_missing(field);
}

/// What separates the fields of a line: the candidate that leaves most numbers, then most fields. Decimal
/// commas are why a semicolon goes before a comma that is no better.
char separator_of(std::string_view line) {
  char best = ',';
  std::pair<int, int> most{-1, -1};
  for (const char candidate : {';', '\t', ','}) {
    std::pair<int, int> found{0, 0};
    bool quoted = false;
    for (std::size_t begin = 0, at = 0; at <= line.size(); ++at) {
      if (at < line.size() && line[at] == '"') quoted = !quoted;
      if (at < line.size() && (quoted || line[at] != candidate)) continue;
      found.first += is_number(trimmed(line.substr(begin, at - begin)));
      ++found.second;
      begin = at + 1;
    }
    if (found > most) std::tie(best, most) = std::tie(candidate, found);
  }
  return best;
}

/// Takes a quoted field, which begins at text[begin], apart in place and returns where the text behind its
/// last quote begins; `length` is how long the field is then, from `begin` on. npos: it does not end.
std::size_t unquote(std::string& text, std::size_t begin, std::size_t& length) {
  std::size_t to = begin;
  for (std::size_t at = begin + 1; at < text.size(); ++at) {
    if (text[at] == '"') {
      if (at + 1 == text.size() || text[at + 1] != '"') {
        length = to - begin;
        return at + 1;
      }
      ++at;
    }
    text[to++] = text[at];
  }
  return std::string::npos;
}

}  // namespace

bool parse_number(std::string_view field, double& value) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  return error == std::errc() && end == field.data() + field.size();
}

bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 6> names{"", "?", "na", "n/a", "nan", "null"};
  return std::ranges::any_of(names, [&](std::string_view name) {
    return std::ranges::equal(name, field, [](char a, char b) {
      return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
    });
  });
}

CsvFile::CsvFile(const std::string& path, char separator) : input_(path), separator_(separator) {
  find_heading();
}

bool CsvFile::read_line(Line& line) {
  while (input_.read_line(line.text)) {
    line.number = input_.lines();
    // Spreadsheets mark the start of UTF-8 files.
    if (line.number == 1 && line.text.starts_with("\xEF\xBB\xBF")) line.text.erase(0, 3);
    if (!trimmed(line.text).empty()) return true;
  }
  return false;
}

void CsvFile::split(Line& line, std::vector<std::string_view>& fields) const {
  fields.clear();
  std::string& text = line.text;
  for (std::size_t begin = 0;;) {
    const std::size_t start = text.find_first_not_of(separator_ == '\t' ? " " : " \t", begin);
    if (start != std::string::npos && text[start] == '"') {
      std::size_t length = 0;
      const std::size_t behind = unquote(text, start, length);
      const std::size_t end = behind == std::string::npos ? behind : text.find(separator_, behind);
      if (behind == std::string::npos ||
          !trimmed(std::string_view(text).substr(behind, end - behind)).empty()) {
        throw DataError(
            "{}:{}: field {} begins with a quote, but {}", input_.path(), line.number, fields.size() + 1,
            behind == std::string::npos ? "none ends it on this line"
                                        : "does not end with one (a quote inside is written twice)");
      }
      fields.push_back(std::string_view(text).substr(start, length));
      if (end == std::string::npos) return;
      begin = end + 1;
    } else {
      const std::size_t end = text.find(separator_, begin);
      fields.push_back(trimmed(std::string_view(text).substr(begin, end - begin)));
      if (end == std::string::npos) return;
      begin = end + 1;
    }
  }
}

void CsvFile::find_heading() {
  for (Line line; waiting_.size() < 2 && read_line(line);) waiting_.push_back(line);
  if (waiting_.empty()) return;
  if (separator_ == '\0') separator_ = separator_of(waiting_.front().text);
  Line first = waiting_.front(), second = waiting_.back();  // copies: taking a line apart changes it
  std::vector<std::string_view> names, below;
  split(first, names);
  split(second, below);
  // The column of a table's own row numbers often has no name; more than one is no heading.
  bool heading = names.size() > 1 && std::ranges::none_of(names, is_number) &&
                 std::ranges::count_if(names, is_missing) <= 1;
  for (std::size_t i = 0; i < std::min(names.size(), below.size()); ++i)
    heading = heading || (!is_number(names[i]) && !is_missing(names[i]) && is_number(below[i]));
  if (!heading) return;
  heading_.assign(names.begin(), names.end());
  heading_line_ = first.number;
  waiting_.pop_front();
}

bool CsvFile::next() {
  if (!waiting_.empty()) {
    line_ = std::move(waiting_.front());
    waiting_.pop_front();
  } else if (!read_line(line_)) {
    return false;
  }
  split(line_, fields_);
  return true;
}

std::string CsvFile::where() const { return fmt::format("{}:{}", input_.path(), line_.number); }

std::string CsvFile::heading_where() const { return fmt::format("{}:{}", input_.path(), heading_line_); }

std::string CsvFile::separator_name() const {
  switch (separator_) {
    case ',':
      return "comma";
    case ';':
      return "semicolon";
    case '\t':
      return "tab";
    default:
      return fmt::format("'{}'", separator_);
  }
}

}  // namespace lockstep::data
