#include "data/csv_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

bool parse_value(std::string_view field, double& value, std::string_view decimals) {
  if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
  const bool points = decimals.front() == '.', commas = decimals.back() == ',';
  if (points && parse_number(field, value)) return true;
  const std::size_t comma = field.find(',');
  if (!commas || field.find('.') != std::string_view::npos) return false;
  if (comma == std::string_view::npos) return parse_number(field, value);
  std::string text(field);
  text[comma] = '.';
  return parse_number(text, value);
}

bool is_whole(std::string_view field) {
  double value = 0;
  return parse_value(field, value) && std::floor(value) == value;
}

bool is_number(std::string_view field, std::string_view decimals) {
  double ignored = 0;
  return parse_value(field, ignored, decimals) && !is_missing(field);
}

bool is_too_large(std::string_view field) {
  char* end = nullptr;
  const std::string text(field);
  return text.find_first_of("iI") == text.npos && std::isinf(std::strtod(text.c_str(), &end)) && *end == '\0';
}

bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 22> names{
      "",    "?",    ".",    "..",   "-",      "--",     "na",     "n/a", "n.a.",     "<na>",      "nan",
      "nat", "-nan", "none", "null", "<null>", "[null]", "(null)", "\\n", "nan(ind)", "-nan(ind)", "#na"};
  const std::string text = lower_case(field);
  // Errors of spreadsheets (#N/A N/A, #DIV/0!, #NAME?), and what C of Windows prints for a NaN (-1.#IND).
  return std::ranges::find(names, text) != names.end() || text.starts_with("#n/a") ||
         (text.starts_with('#') && (text.ends_with('!') || text == "#name?")) || text.find("1.#") <= 1;
}

bool is_nameless(std::string_view name) {
  return name.empty() || name.starts_with("Unnamed: ") ||
         (name.starts_with("...") && is_whole(name.substr(3)));
}

namespace {

/// The separator that splits a line into the most numbers, then into the most fields. A semicolon wins a tie
/// with a comma, because of decimal commas.
char separator_of(std::string_view line) {
  char best = ',';
  std::pair<int, int> most{-1, -1};
  for (const char candidate : {';', '\t', ','}) {
    std::pair<int, int> found{0, 0};
    bool quoted = false;
    for (std::size_t begin = 0, at = 0; at <= line.size(); ++at) {
      if (at < line.size() && line[at] == '"') quoted = !quoted;
      if (at < line.size() && (quoted || line[at] != candidate)) continue;
      found.first += is_number(without_blanks(line.substr(begin, at - begin)), candidate == ';' ? ".," : ".");
      ++found.second;
      begin = at + 1;
    }
    if (found.second > 1 && found > most) std::tie(best, most) = std::tie(candidate, found);
  }
  return best;
}

/// Whether the text, from `at` on, ends within a quoted field; `quoted`: it begins within one.
bool ends_in_quotes(std::string_view text, std::size_t at, bool quoted, std::string_view separators) {
  const std::string_view blanks = separators.find('\t') == std::string_view::npos ? " \t" : " ";
  while (true) {
    if (!quoted) {
      at = text.find_first_not_of(blanks, at);
      if (at == std::string_view::npos) return false;
      quoted = text[at] == '"';
      at += quoted;
    }
    for (; quoted; ++at) {
      at = text.find('"', at);
      if (at == std::string_view::npos) return true;
      quoted = at + 1 < text.size() && text[at + 1] == '"';
      at += quoted;
    }
    at = text.find_first_of(separators, at);
    if (at == std::string_view::npos) return false;
    ++at;
  }
}

/// Unquotes in place the field that begins at text[begin]. Returns the position after its closing quote and
/// its new length in `length`; npos without a closing quote.
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

/// True for 0, 1 ... or 1990, 1991 ...
bool count_up(const std::vector<double>& numbers) {
  return !numbers.empty() && std::floor(numbers[0]) == numbers[0] &&
         std::ranges::adjacent_find(numbers, [](double a, double b) { return b != a + 1; }) == numbers.end();
}

/// True if the numbers count up, but hardly by chance.
bool number_columns(const std::vector<double>& numbers) {
  return count_up(numbers) &&
         (numbers.size() > 2 || (numbers.size() == 2 && (numbers[0] == 0 || numbers[0] == 1)));
}

}  // namespace

CsvFile::CsvFile(const std::string& path, const CsvOptions& options)
    : input_(path),
      separator_(options.separator),
      decimal_(options.decimal),
      may_have_commas_(options.may_have_commas) {
  find_heading(options);
}

std::string_view CsvFile::decimals() const {
  if (decimal_ != '\0') return {&decimal_, 1};
  return separator_ == ';' || (may_have_commas_ && separator_ != ',') ? ".," : ".";
}

bool CsvFile::number(std::string_view field, double& value) {
  if (!parse_value(field, value, decimals())) return false;
  const std::size_t sign = decimals().size() > 1 ? field.find_first_of(".,") : std::string_view::npos;
  if (sign != std::string_view::npos) decimal_ = field[sign];
  return true;
}

bool CsvFile::read_line(Line& line) {
  using namespace std::string_view_literals;
  constexpr std::size_t max_quoted_bytes = 1 << 20, tar_mark = 257;
  const auto check_text = [&](const std::string& text) {
    if (text.find('\0') != std::string::npos)
      throw DataError("{}:{}: contains a null byte, so it is not text; if it is UTF-16, {}", path(),
                      input_.lines(), python_command(path(), "read_csv(sys.argv[1], encoding=\"utf-16\")"));
  };
  while (input_.read_line(line.text)) {
    line.number = input_.lines();
    if (line.number == 1) {
      if (const FileKind* const kind = kind_of_file(line.text)) {
        const std::string_view reader = path().ends_with(".zip") ? "read_csv(sys.argv[1])" : kind->reader;
        throw DataError("{}: not a CSV file, but {}: {}", path(), kind->what,
                        reader.empty() ? std::string(kind->remedy) : python_command(path(), reader));
      }
      if (line.text.size() > tar_mark && std::string_view(line.text).substr(tar_mark).starts_with("ustar"))
        throw DataError("{}: not a CSV file, but a tar archive: unpack it (tar -xf)", path());
    }
    check_text(line.text);
    if (line.number == 1 && line.text.find('\r') != std::string::npos)
      throw DataError("{}: lines end in CR (carriage return) only; convert the file (tr '\\r' '\\n')",
                      path());
    // Spreadsheets write a byte order mark.
    if (line.number == 1 && line.text.starts_with("\xEF\xBB\xBF")) line.text.erase(0, 3);
    if (without_blanks(line.text).empty()) continue;
    const std::string_view separators = separator_ == '\0' ? ";,\t"sv : std::string_view(&separator_, 1);
    std::string more;
    for (std::size_t at = 0; at < max_quoted_bytes && ends_in_quotes(line.text, at, at > 0, separators);) {
      at = line.text.size() + 1;
      if (!input_.read_line(more)) break;  // split() tells
      check_text(more);
      line.text.append(" ").append(more);
    }
    return true;
  }
  return false;
}

void CsvFile::split(Line& line, Fields& fields) const {
  fields.clear();
  std::string& text = line.text;
  for (std::size_t begin = 0;;) {
    const std::size_t start = text.find_first_not_of(separator_ == '\t' ? " " : " \t", begin);
    if (start != std::string::npos && text[start] == '"') {
      std::size_t length = 0;
      const std::size_t behind = unquote(text, start, length);
      const std::size_t end = behind == std::string::npos ? behind : text.find(separator_, behind);
      if (behind == std::string::npos ||
          !without_blanks(std::string_view(text).substr(behind, end - behind)).empty()) {
        throw DataError("{}:{}: field {} begins with a quote, but {}", path(), line.number, fields.size() + 1,
                        behind == std::string::npos
                            ? "has no closing quote"
                            : "text follows the closing quote (write a quote inside as two)");
      }
      fields.push_back(std::string_view(text).substr(start, length));
      if (end == std::string::npos) return;
      begin = end + 1;
    } else {
      const std::size_t end = text.find(separator_, begin);
      fields.push_back(without_blanks(std::string_view(text).substr(begin, end - begin)));
      if (end == std::string::npos) return;
      begin = end + 1;
    }
  }
}

/// Whether the first line is a heading, judged by the lines below it; none: undecided.
std::optional<bool> CsvFile::is_heading(const Fields& names, const Fields& below) {
  std::vector<double> numbers, above;  // numbers in the first line; those above a number
  std::vector<std::size_t> titles;     // columns of names above names
  int words = 0, broken = 0;           // names above a number; broken numbers (1e400, 0x1f, 3.5x) above one
  for (std::size_t i = 0; i < std::min(names.size(), below.size()); ++i) {
    if (is_missing(names[i])) continue;
    if (is_number(names[i], decimals())) {
      parse_value(names[i], numbers.emplace_back(), decimals());
      if (is_number(below[i], decimals())) above.push_back(numbers.back());
    } else if (!is_number(below[i], decimals())) {
      titles.push_back(i);
    } else {
      (std::string_view("+-.0123456789").find(names[i].front()) != std::string_view::npos ? broken : words)++;
    }
  }
  const auto missing = std::ranges::count_if(names, is_missing);
  // A heading often lacks a name for the column of row numbers, but for no other column.
  const bool index = names.front().empty() && missing == 1;
  if (words + broken > 0) {
    if (above.empty() || words >= std::ssize(above) || (words > 0 && number_columns(above))) return true;
    return words == 0 ? std::optional(false) : std::nullopt;
  }
  if (numbers.empty())
    return names.size() < 2 || missing > 1 ? false
           : missing == 0 || index         ? std::optional(true)
                                           : std::nullopt;
  // The names that pandas gives to nameless columns: 0, 1 ..., often after a nameless column of row numbers.
  const bool pandas = waiting_.size() > 1 && count_up(numbers) && numbers[0] == 0 && missing == index;
  if (titles.size() == 1 && waiting_.size() > 1 && !(pandas && index))
    return numbers_are_names(names[titles[0]], titles[0], numbers, std::ranges::none_of(below, is_whole));
  return pandas &&
         (index || numbers.size() > 2 || (numbers.size() == 2 && !std::ranges::all_of(below, is_whole)));
}

/// Whether a first line of numbers and one text above names (0,1,species) is a heading. In a heading the
/// numbers are in order, and the text is not a class of the lines below, where other classes repeat.
std::optional<bool> CsvFile::numbers_are_names(std::string_view text, std::size_t column,
                                               const std::vector<double>& numbers, bool fractions_below) {
  constexpr std::size_t max_lines = 1000, max_bytes = 1 << 20;
  std::set<std::string, std::less<>> classes;
  bool repeated = false;
  Fields fields;
  for (std::size_t i = 1, bytes = 0; i < max_lines && bytes < max_bytes; ++i) {
    Line line;
    if (i == waiting_.size() && !read_line(line)) break;
    line = i == waiting_.size() ? waiting_.emplace_back(std::move(line)) : waiting_[i];
    bytes += line.text.size();
    split(line, fields);
    if (fields.size() <= column) continue;
    if (fields[column] == text) return false;
    repeated |= !classes.emplace(fields[column]).second;
  }
  const bool from_0 = numbers[0] == 0, columns = number_columns(numbers);
  if (columns && (repeated || (from_0 && fractions_below))) return true;
  const bool ordered = (from_0 || numbers.size() > 2) && std::ranges::is_sorted(numbers, std::less_equal());
  return (columns && from_0) || (repeated && ordered) ? std::nullopt : std::optional(false);
}

void CsvFile::find_heading(const CsvOptions& options) {
  Line line;
  if (!read_line(line)) return;
  if (separator_ == '\0') separator_ = separator_of(line.text);
  waiting_.push_back(line);
  if (read_line(line)) waiting_.push_back(line);
  Line first = waiting_.front(), second = waiting_.back();  // copies: split() changes a line
  Fields names, below;
  split(first, names);
  split(second, below);
  while (names.size() > below.size() && names.back().empty()) names.pop_back();
  for (; waiting_.size() > 1 && names.size() > 1 && names.size() == below.size() && names.back().empty() &&
         below.back().empty();
       ++empty_columns_) {
    names.pop_back();
    below.pop_back();
  }
  width_ = below.size();
  // R writes row names in a column without a field in the heading.
  row_names_ = names.size() + 1 == below.size() &&
               std::ranges::none_of(names, [](std::string_view name) { return is_number(name); });
  if (row_names_) names.insert(names.begin(), "");
  std::optional<bool> there = options.heading;
  const std::unordered_set<std::string_view> in_line(names.begin(), names.end());
  if (!there && std::ranges::any_of(options.names, [&](const std::string& name) {
        return in_line.contains(name) && !is_number(name);
      }))
    there = true;
  if (!there) there = is_heading(names, below);
  if (!there)
    throw DataError("{}:{}: may be a heading, or a sample with an invalid number; set --heading yes or no",
                    path(), first.number);
  row_names_ = row_names_ && *there;
  if (!*there) return;
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
  for (; empty_columns_ > 0 && fields_.size() > width_; fields_.pop_back())
    if (!fields_.back().empty())
      throw DataError("{}: field {} is '{}', but the column has no name, and no value in the first lines",
                      where(), fields_.size(), fields_.back().substr(0, 40));
  return true;
}

std::string CsvFile::where() const { return fmt::format("{}:{}", path(), line_.number); }

std::string CsvFile::heading_where() const { return fmt::format("{}:{}", path(), heading_line_); }

std::string CsvFile::separator_name() const {
  return separator_ == ','    ? "comma"
         : separator_ == ';'  ? "semicolon"
         : separator_ == '\t' ? "tab"
                              : fmt::format("'{}'", separator_);
}

std::string CsvFile::other_separator() const {
  if (fields_.size() != 1) return "";
  const std::string_view text = fields_.front();
  const bool pipes = text.find('|') != std::string_view::npos,
             blanks = text.find(' ') != std::string_view::npos;
  if (!pipes && !blanks) return "";
  return fmt::format("; fields seem to be separated by {}: {}", pipes ? "pipes" : "blanks",
                     python_command(path(), pipes ? R"(read_csv(sys.argv[1], sep="|"))"
                                                  : R"(read_csv(sys.argv[1], sep="\\s+"))"));
}

std::string numbered_name(const char* what, std::size_t index, const std::vector<std::string>& names) {
  return fmt::format("{} {}{}", what, index + 1,
                     index < names.size() ? fmt::format(" ('{}')", names[index]) : "");
}

std::string describe(const CsvFile& file, std::size_t field) {
  return numbered_name("field", field, file.heading());
}

std::string_view short_text(std::string_view field) { return field.substr(0, 40); }

std::string missing_value(const CsvFile& file, std::size_t field) {
  return fmt::format("{}: {} is missing ('{}'): add a value, or remove the line", file.where(),
                     describe(file, field), file.fields()[field]);
}

std::string python_command(const std::string& path, std::string_view reader) {
  return fmt::format(
      "convert it: python3 -c 'import pandas, sys; pandas.{}.to_csv(\"table.csv\", index=False)' {}", reader,
      shell_quoted(path));
}

}  // namespace lockstep::data
