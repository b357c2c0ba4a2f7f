// CSV files: splitting their lines into fields, and making images of them.
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "data/data_file.h"
#include "data/image_writer.h"
#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// Parses a whole field as a number; false if it is not one.
bool parse_number(std::string_view field, double& value) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  return error == std::errc() && end == field.data() + field.size();
}

/// True if a field marks a missing value: empty, ?, -, NA, N/A, #N/A, <NA>, nan, none or null, in any case.
bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 10> names{"",     "?",    "-",   "na",   "n/a",
                                                   "#n/a", "<na>", "nan", "none", "null"};
  return std::ranges::any_of(names, [&](std::string_view name) {
    return std::ranges::equal(name, field, [](char a, char b) {
      return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
    });
  });
}

/// Fields are separated by one character, and may be quoted ("a; ""b"""); blanks around them and blank lines
/// are skipped. Whether the first line is a heading, is_heading() tells.
class CsvFile {
 public:
  /// Separator and heading as CsvOptions say. DataError as Input, for quotes that do not end, and for a first
  /// line that may be a heading or a sample.
  CsvFile(const std::string& path, const CsvOptions& options);

  /// Reads the next line below the heading; false at the end of the file.
  bool next();
  /// The fields of that line, valid until the next one is read.
  const std::vector<std::string_view>& fields() const { return fields_; }
  std::string where() const;  ///< FILE:LINE of that line

  const std::vector<std::string>& heading() const {
    return heading_;
  }                                   ///< names of columns; empty: no heading
  std::string heading_where() const;  ///< FILE:LINE of the heading
  /// "comma", "semicolon", "tab" or the character in quotes.
  std::string separator_name() const;

 private:
  struct Line {
    std::string text;
    std::int64_t number = 0;
  };

  bool read_line(Line& line);
  void split(Line& line, std::vector<std::string_view>& fields) const;
  void find_heading(std::optional<bool> there);

  Input input_;
  char separator_;
  std::vector<std::string> heading_;
  std::int64_t heading_line_ = 0;
  std::deque<Line> waiting_;  // read already, to tell whether there is a heading
  Line line_;
  std::vector<std::string_view> fields_;
};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool is_number(std::string_view field) {
  double ignored = 0;
  return parse_number(field, ignored) && !is_missing(field);
}

/// The separator that splits a line into most numbers, then into most fields. A semicolon wins over an equal
/// comma because of decimal commas.
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

/// Unquotes the field that begins at text[begin] in place. Returns the position after its last quote, and its
/// new length in `length`; npos if the quote does not end.
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

CsvFile::CsvFile(const std::string& path, const CsvOptions& options)
    : input_(path), separator_(options.separator) {
  find_heading(options.heading);
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

bool is_whole(std::string_view field) {
  double value = 0;
  return parse_number(field, value) && std::floor(value) == value;
}

/// 1990, 1991 ...
bool count_up(std::span<const std::string_view> fields) {
  double before = 0, value = 0;
  for (std::size_t i = 0; i < fields.size(); ++i, before = value)
    if (!is_whole(fields[i]) || !parse_number(fields[i], value) || (i > 0 && value != before + 1))
      return false;
  return fields.size() > 1;
}

/// Whether the first line of a table names its columns, as the line below it tells; none: it may be either.
std::optional<bool> is_heading(std::span<const std::string_view> names,
                               std::span<const std::string_view> below) {
  // What pandas calls columns without names: 0, 1 ..., often behind a nameless column of row numbers.
  const bool index = !names.empty() && names.front().empty();
  const auto counted = names.subspan(index ? 1 : 0);
  if (count_up(counted) && counted.front() == "0" &&
      (index || names.size() > 2 || !std::ranges::all_of(below, is_whole)))
    return true;
  std::vector<std::string_view> numbers;  // above numbers
  int words = 0, broken = 0;              // above numbers; broken: 1e400, 0x1f, 3.5x
  for (std::size_t i = 0; i < std::min(names.size(), below.size()); ++i) {
    if (!is_number(below[i]) || is_missing(names[i])) continue;
    if (is_number(names[i])) {
      numbers.push_back(names[i]);
    } else {
      (std::string_view("+-.0123456789").find(names[i].front()) != std::string_view::npos ? broken : words)++;
    }
  }
  if (words + broken == 0)  // a heading often lacks a name for the column of row numbers, but for no other
    return names.size() > 1 && std::ranges::none_of(names, is_number) &&
           std::ranges::count_if(names, is_missing) <= 1;
  if (numbers.empty() || words >= std::ssize(numbers) || (words > 0 && count_up(numbers))) return true;
  return words == 0 ? std::optional(false) : std::nullopt;
}

void CsvFile::find_heading(std::optional<bool> there) {
  for (Line line; waiting_.size() < 2 && read_line(line);) waiting_.push_back(line);
  if (waiting_.empty()) return;
  if (separator_ == '\0') separator_ = separator_of(waiting_.front().text);
  Line first = waiting_.front(), second = waiting_.back();  // copies: split() changes a line
  std::vector<std::string_view> names, below;
  split(first, names);
  split(second, below);
  if (!there) there = is_heading(names, below);
  if (!there)
    throw DataError(
        "{}:{}: is it a heading, or a sample with a value that is no number? Say --heading yes or no",
        input_.path(), first.number);
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

/// A field for error texts: "field 3", with the name of its column if there is a heading.
std::string describe(const CsvFile& file, std::size_t field) {
  if (field >= file.heading().size()) return fmt::format("field {}", field + 1);
  return fmt::format("field {} ('{}')", field + 1, file.heading()[field]);
}

std::string_view shortened(std::string_view field) { return field.substr(0, 40); }

[[noreturn]] void throw_missing(const CsvFile& file, std::size_t field) {
  throw DataError("{}: {} is missing ('{}'): give it a value, or leave the line out", file.where(),
                  describe(file, field), file.fields()[field]);
}

/// Whether the first column has no name in the heading (pandas reads that as "Unnamed: 0") and numbers the
/// rows: another whole number in each.
bool numbers_rows(const std::string& path, const CsvOptions& options) {
  CsvFile file(path, options);
  if (file.heading().empty() || options.label == "first" || options.label == "1") return false;
  const std::string& name = file.heading().front();
  if (!name.empty() && !name.starts_with("Unnamed: ")) return false;
  std::vector<double> numbers;
  while (file.next()) {
    double& number = numbers.emplace_back();
    if (!is_whole(file.fields().front()) || !parse_number(file.fields().front(), number)) return false;
  }
  std::ranges::sort(numbers);
  return numbers.size() > 1 && std::ranges::adjacent_find(numbers) == numbers.end();
}

/// Reads the values and the label of every line, and checks that all lines of all files agree.
class CsvSamples {
 public:
  /// row_numbers: the first column is left out.
  CsvSamples(const CsvOptions& options, bool row_numbers) : options_(options), first_(row_numbers ? 1 : 0) {
    if (options.image.rank() == 3) values_ = static_cast<std::size_t>(options.image.numel());
  }

  /// Calls use(values, file, label) for each sample, with the index of its label's field.
  template <class Use>
  void read(const std::string& path, const Use& use) {
    CsvFile file(path, options_);
    if (!file.heading().empty()) {
      notes_.push_back(file.heading_where() + " is a heading, skipped");
      if (first_ > 0)
        notes_.push_back(path + ": the first column, without a name, numbers the rows: left out");
      names_ = file.heading();
    }
    std::vector<double> values;
    std::optional<std::size_t> label;
    while (file.next()) {
      check_fields(file);
      if (!label) label = label_column(file);
      values.clear();
      for (std::size_t i = first_; i < file.fields().size(); ++i) {
        if (i != *label) values.push_back(value_of(file, i));
      }
      label_ = *label;
      use(std::span<const double>(values), file, *label);
    }
  }

  const std::vector<std::string>& notes() const { return notes_; }
  /// The column of a value: "column 3", with its name if a heading names it.
  std::string column_of(std::size_t value) const {
    std::size_t column = value + first_;
    column += column >= label_;
    return fmt::format("column {}{}", column + 1,
                       column < names_.size() ? fmt::format(" ('{}')", names_[column]) : "");
  }
  Shape image() const {
    return options_.image.rank() == 3 ? options_.image : Shape{static_cast<std::int64_t>(values_), 1, 1};
  }

 private:
  void check_fields(const CsvFile& file) {
    const std::size_t fields = file.fields().size();
    if (values_ == 0 && fields > 1 + first_) values_ = fields - 1 - first_;
    if (fields == values_ + 1 + first_ && fields > 1 + first_) return;
    const std::string wanted = values_ == 0 ? "values" : fmt::format("{} values", values_);
    throw DataError("{}: {} field{}, but {} and a label are expected; fields are separated by {} here",
                    file.where(), fields, fields == 1 ? "" : "s", wanted, file.separator_name());
  }

  std::size_t label_column(const CsvFile& file) const {
    const std::string& label = options_.label;
    const std::size_t columns = file.fields().size();
    if (label == "last") return columns - 1;
    if (label == "first") return 0;
    const auto& names = file.heading();
    if (const auto found = std::ranges::find(names, label); found != names.end())
      return static_cast<std::size_t>(found - names.begin());
    std::size_t number = 0;
    const char* const end = label.data() + label.size();
    const auto [stop, error] = std::from_chars(label.data(), end, number);
    if (error == std::errc() && stop == end && number >= 1 && number <= columns) return number - 1;
    throw UsageError(
        "{}: no column is called '{}', to be the label: there are {} columns{}",
        names.empty() ? file.where() : file.heading_where(), label, columns,
        names.empty() ? ", and no heading names them" : fmt::format(", {}", fmt::join(names, ", ")));
  }

  static double value_of(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    double value = 0;
    if (is_missing(text)) throw_missing(file, field);
    if (!parse_number(text, value))
      throw DataError("{}: {} is '{}', not a number", file.where(), describe(file, field), shortened(text));
    if (!(std::abs(value) <= std::numeric_limits<float>::max()))
      throw DataError("{}: {} is '{}', not a number that float32 holds", file.where(), describe(file, field),
                      shortened(text));
    return value;
  }

  const CsvOptions& options_;
  std::size_t first_;  // column of values
  std::vector<std::string> notes_, names_;
  std::size_t values_ = 0;  // per sample; 0: unknown so far
  std::size_t label_ = 0;   // its column
};

/// Labels: all integers or all names.
class CsvLabels {
 public:
  /// Takes the class names of the data file `from`; if it has none, names are numbered in their order.
  explicit CsvLabels(const std::string& from) : from_(from) {
    if (from.empty()) return;
    const hdf5::File file = hdf5::File::open(from);
    if (file.exists("/y")) names_ = class_names_of(file.open_dataset("/y"));
    given_ = !names_.empty();
  }

  /// Records a label in the first pass.
  void see(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    if (is_missing(text)) throw_missing(file, field);
    double value = 0;
    const Kind kind = parse_number(text, value) ? Kind::numbers : Kind::names;
    if (kind == Kind::numbers && !(value >= 0 && value < 9e15 && std::floor(value) == value)) {
      throw DataError(
          "{}: the label, {}, is '{}': labels are integers from 0 on, or names (an HDF5 file with an array y "
          "of floats is data for task.name = regression)",
          file.where(), describe(file, field), shortened(text));
    }
    if (kind_ != Kind::unknown && kind_ != kind) {
      throw DataError("{}: the label, {}, is '{}', but those before are {}", file.where(),
                      describe(file, field), shortened(text), kind_ == Kind::names ? "names" : "integers");
    }
    kind_ = kind;
    if (kind == Kind::names) {
      see_name(file, field, text);
    } else {
      numbers_seen_.insert(static_cast<std::int64_t>(value));
    }
  }

  /// Of labels that may be values to predict; empty otherwise.
  std::string warning() const {
    if (numbers_seen_.empty()) return "";
    const std::int64_t classes = *std::ranges::max_element(numbers_seen_) + 1,
                       used = std::ssize(numbers_seen_);
    if (classes <= 2 * used) return "";
    return fmt::format(
        "labels up to {} make {} classes, of which {} occur: if they are values to predict, an HDF5 file "
        "with "
        "an array y of floats is data for task.name = regression",
        classes - 1, classes, used);
  }

  void end_first_pass() {
    if (!given_) names_.assign(seen_.begin(), seen_.end());
    seen_.clear();
    for (std::size_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = static_cast<std::int64_t>(i);
  }

  /// The number of a label of the first pass; none if it is a new one.
  std::optional<std::int64_t> number(std::string_view text) const {
    if (kind_ == Kind::names) {
      const auto found = numbers_.find(text);
      return found == numbers_.end() ? std::nullopt : std::optional(found->second);
    }
    double value = 0;
    return parse_number(text, value) && value >= 0 && value < 9e15
               ? std::optional(static_cast<std::int64_t>(value))
               : std::nullopt;
  }

  std::vector<std::string> names() const {
    return kind_ == Kind::names ? names_ : std::vector<std::string>();
  }

 private:
  enum class Kind { unknown, numbers, names };

  void see_name(const CsvFile& file, std::size_t field, std::string_view text) {
    if (seen_.contains(text)) return;
    if (text.find('\0') != std::string_view::npos)
      throw DataError("{}: the label, {}, has a null byte inside: is it text?", file.where(),
                      describe(file, field));
    if (given_ && std::ranges::find(names_, text) == names_.end()) {
      throw DataError("{}: the label, {}, is '{}', which is no class of {}: those are {}", file.where(),
                      describe(file, field), shortened(text), from_, fmt::join(names_, ", "));
    }
    seen_.emplace(text);
    name_bytes_ += text.size() + 1;
    if (name_bytes_ > most_class_name_bytes) {
      throw DataError(
          "{}: the label, {}, has {} different names by now, more than a data file keeps: is it the right "
          "column? Else number them",
          file.where(), describe(file, field), seen_.size());
    }
  }

  std::string from_;
  bool given_ = false;
  Kind kind_ = Kind::unknown;
  std::set<std::string, std::less<>> seen_;
  std::size_t name_bytes_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::int64_t, std::less<>> numbers_;
  std::unordered_set<std::int64_t> numbers_seen_;
};

/// The least and the greatest value of each column.
class CsvSpreads {
 public:
  void see(std::span<const double> values) {
    if (least_.empty()) least_ = greatest_ = {values.begin(), values.end()};
    for (std::size_t i = 0; i < std::min(values.size(), least_.size()); ++i) {
      least_[i] = std::min(least_[i], values[i]);
      greatest_[i] = std::max(greatest_[i], values[i]);
    }
  }

  /// What float32, as which values are written, tells apart too little of.
  std::vector<std::string> warnings(const CsvSamples& samples) const {
    constexpr double few_steps = 1000;
    std::vector<std::string> found;
    for (std::size_t i = 0; i < least_.size(); ++i) {
      const auto most = static_cast<float>(std::max(std::abs(least_[i]), std::abs(greatest_[i])));
      const double step = static_cast<double>(std::nextafter(most, std::numeric_limits<float>::infinity())) -
                          static_cast<double>(most);
      const double spread = greatest_[i] - least_[i];
      if (spread > 0 && spread < few_steps * step && spread != std::floor(spread / step) * step)
        found.push_back(
            fmt::format("{} has values from {} to {}, of which float32 keeps steps of {:.3g}: subtract what "
                        "is common to all",
                        samples.column_of(i), least_[i], greatest_[i], step));
    }
    return found;
  }

 private:
  std::vector<double> least_, greatest_;
};

bool is_byte(double value) { return value >= 0 && value <= 255 && std::floor(value) == value; }

}  // namespace

Prepared prepare_csv(std::span<const std::string> inputs, const Output& output, const CsvOptions& options) {
  if (inputs.empty()) throw UsageError("no CSV files were named");
  if (options.image.rank() != 0 && (options.image.rank() != 3 || options.image.numel() < 1)) {
    throw UsageError("images of shape {} were asked: it is channels, height, width",
                     to_string(options.image));
  }
  check_output(inputs, output, options.statistics);

  ImageFile contents{.bytes = true};
  const bool row_numbers =
      std::ranges::all_of(inputs, [&](const std::string& path) { return numbers_rows(path, options); });
  CsvSamples samples(options, row_numbers);
  CsvLabels labels(options.statistics);
  CsvSpreads spreads;
  for (const std::string& path : inputs) {
    samples.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
      labels.see(file, label);
      spreads.see(values);
      contents.bytes = contents.bytes && std::ranges::all_of(values, is_byte);
      ++contents.images;
    });
  }
  labels.end_first_pass();
  contents.image = samples.image();
  contents.class_names = labels.names();

  Prepared prepared = write_images(output, contents, options.statistics, [&](ImageWriter& writer) {
    CsvSamples again(options, row_numbers);
    std::vector<std::uint8_t> bytes;
    std::vector<float> floats;
    for (const std::string& path : inputs) {
      again.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
        const std::optional<std::int64_t> number = labels.number(file.fields()[label]);
        const bool same_kind = !contents.bytes || std::ranges::all_of(values, is_byte);
        if (!number || !same_kind || std::ssize(values) != contents.image.numel())
          throw DataError("{}: not written: the line changed while the file was read", file.where());
        writer.add_label(*number);
        if (contents.bytes) {
          bytes.clear();
          for (const double v : values) bytes.push_back(static_cast<std::uint8_t>(v));
          writer.add_image(std::span<const std::uint8_t>(bytes));
        } else {
          floats.clear();
          for (const double v : values) floats.push_back(static_cast<float>(v));
          writer.add_image(std::span<const float>(floats));
        }
      });
    }
  });
  prepared.notes = samples.notes();
  if (!contents.bytes) prepared.warnings = spreads.warnings(samples);
  if (const std::string warning = labels.warning(); !warning.empty()) prepared.warnings.push_back(warning);
  return prepared;
}

}  // namespace lockstep::data
