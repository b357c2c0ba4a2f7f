// Reads images and labels from CSV files.
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "data/csv_file.h"
#include "data/data_file.h"
#include "data/image_writer.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// "column 3 ('width')", or "column 3" without a name.
std::string numbered_name(const char* what, std::size_t index, const std::vector<std::string>& names) {
  return fmt::format("{} {}{}", what, index + 1,
                     index < names.size() ? fmt::format(" ('{}')", names[index]) : "");
}

std::string describe(const CsvFile& file, std::size_t field) {
  return numbered_name("field", field, file.heading());
}

std::string_view short_text(std::string_view field) { return field.substr(0, 40); }

std::string missing(const CsvFile& file, std::size_t field) {
  return fmt::format("{}: {} is missing ('{}'): add a value, or remove the line", file.where(),
                     describe(file, field), file.fields()[field]);
}

/// DataError unless names are equal in the same order: only names tell what a value is.
void check_same_names(const std::string& where, std::span<const std::string> names,
                      const std::string& other_where, std::span<const std::string> others, const char* what) {
  const auto same = [](const std::string& a, const std::string& b) {
    return a == b || (is_nameless(a) && is_nameless(b));
  };
  const auto [name, other] = std::ranges::mismatch(names, others, same);
  if (name == names.end() || other == others.end()) return;
  throw DataError(
      "{}: {} {} is '{}', but in {} it is '{}': files must have the same columns in the same order", where,
      what, name - names.begin() + 1, short_text(*name), other_where, short_text(*other));
}

/// Reads the values and the label of every line, and checks that all lines of all files have the same
/// columns.
class CsvSamples {
 public:
  /// Reads the headings and the first lines after them.
  CsvSamples(std::span<const std::string> inputs, const CsvOptions& options) : options_(options) {
    if (options.image.rank() == 3) values_ = static_cast<std::size_t>(options.image.numel());
    for (const std::string& path : inputs) see_heading(CsvFile(path, options));
    for (const std::string& path : inputs) keep_values(path);
    if (values_ == 0 && !names_.empty()) values_ = names_.size() - index_columns_.size() - 1;
    for (const std::size_t column : index_columns_)
      notes_.push_back(fmt::format("{}: {}, without a name, {}: skipped", where_,
                                   numbered_name("column", column, names_),
                                   row_names_ ? "names the rows" : "numbers the rows"));
  }

  /// Calls use(values, file, label) for each sample, with the index of its label's field.
  template <class Use>
  void read(const std::string& path, const Use& use) {
    CsvFile file(path, options_);
    std::vector<double> values;
    for (bool first = true; file.next(); first = false) {
      check_fields(file);
      check_index_columns(file);
      if (first) label_ = label_column(file, file.fields().size());
      if (first) columns_ = value_columns(file.fields().size());
      values.clear();
      for (const std::size_t i : columns_) values.push_back(value_of(file, i));
      use(std::span<const double>(values), file, label_);
    }
  }

  const std::vector<std::string>& notes() const { return notes_; }
  /// The column of a value: "column 3", with its name if there is a heading.
  std::string column_of(std::size_t value) const { return numbered_name("column", columns_[value], names_); }
  /// The names of a sample's values, in order; empty without a heading, or if they exceed max_name_bytes.
  std::vector<std::string> value_names() const {
    std::vector<std::string> found;
    for (const std::size_t i : value_columns(names_.size())) found.push_back(names_[i]);
    if (fmt::format("{}", fmt::join(found, "\n")).size() > max_name_bytes) found.clear();
    return found;
  }
  bool has_heading() const { return !names_.empty(); }
  const std::string& heading_where() const { return where_; }
  Shape image() const {
    return options_.image.rank() == 3 ? options_.image : Shape{static_cast<std::int64_t>(values_), 1, 1};
  }

 private:
  /// The columns of the values in a line of `fields` fields.
  std::vector<std::size_t> value_columns(std::size_t fields) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < fields; ++i)
      if (i != label_ && !index_columns_.contains(i)) found.push_back(i);
    return found;
  }

  void see_heading(const CsvFile& file) {
    const std::vector<std::string>& names = file.heading();
    if (names.empty()) return;
    notes_.push_back(file.heading_where() + " is a heading, skipped");
    if (!names_.empty()) return check_same_names(file.heading_where(), names, where_, names_, "field");
    names_ = names;
    where_ = file.heading_where();
    row_names_ = file.row_names();
    label_ = label_column(file, names.size());
    // pandas, readr and spreadsheets write row numbers in columns at an edge, and may do so repeatedly.
    const auto may_number = [&](std::size_t i) { return i != label_ && is_nameless(names[i]); };
    for (std::size_t i = 0; i < names.size() && may_number(i); ++i) index_columns_.insert(i);
    for (std::size_t i = names.size(); i-- > 0 && may_number(i);) index_columns_.insert(i);
    if (index_columns_.size() + 1 >= names.size()) index_columns_.clear();  // no column has a name
  }

  /// Keeps nameless columns whose first value is not a row number.
  void keep_values(const std::string& path) {
    CsvFile file(path, options_);
    if (!index_columns_.empty() && file.next())
      std::erase_if(index_columns_, [&](std::size_t i) {
        return !(row_names_ && i == 0) && (i >= file.fields().size() || !is_whole(file.fields()[i]));
      });
  }

  /// DataError if a skipped column holds a value in this line.
  void check_index_columns(const CsvFile& file) const {
    for (const std::size_t i : index_columns_) {
      const std::string_view text = file.fields()[i];
      if (is_whole(text)) continue;
      if (!(row_names_ && i == 0))
        throw DataError(
            "{}: {} is '{}', but the nameless column seems to number the rows; if it holds values, name it",
            file.where(), describe(file, i), short_text(text));
      if (is_number(text))
        throw DataError("{}: has {} fields, but the heading has {}; is the first field a row name?",
                        file.where(), file.fields().size(), names_.size() - 1);
    }
  }

  void check_fields(const CsvFile& file) {
    const std::size_t fields = file.fields().size(), others = index_columns_.size() + 1;
    if (values_ == 0 && fields > others) values_ = fields - others;
    if (fields == values_ + others && fields > others) return;
    std::string expected = values_ == 0 ? "values" : fmt::format("{} values", values_);
    if (!index_columns_.empty())
      expected += fmt::format(", {} without a name", pluralized(index_columns_.size(), "column"));
    throw DataError("{}: has {} field{}, expected {} and a label; the separator is {}", file.where(), fields,
                    fields == 1 ? "" : "s", expected, file.separator_name());
  }

  std::size_t label_column(const CsvFile& file, std::size_t columns) const {
    const std::string& label = options_.label;
    if (label == "last") return columns - 1;
    if (label == "first") return row_names_ ? 1 : 0;
    const auto& names = file.heading().empty() ? names_ : file.heading();
    if (std::ranges::count(names, label) > 1)
      throw UsageError("{}: several columns are named '{}': give the number of the label's column, from 1",
                       where_, label);
    if (const auto found = std::ranges::find(names, label); found != names.end())
      return static_cast<std::size_t>(found - names.begin());
    std::size_t number = 0;
    if (parse_number(label, number) && number >= 1 && number <= columns) return number - 1;
    throw UsageError("{}: no column is named '{}', the label: there are {} columns{}",
                     names.empty() ? file.where() : where_, label, columns,
                     names.empty() ? " without a heading" : fmt::format(", {}", fmt::join(names, ", ")));
  }

  static double value_of(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    double value = 0;
    const bool number = parse_value(text, value);
    if (number && std::abs(value) <= std::numeric_limits<float>::max()) return value;
    if (is_missing(text)) throw DataError("{}", missing(file, field));
    throw DataError("{}: {} is '{}', not a number{}", file.where(), describe(file, field), short_text(text),
                    number ? " in the range of float32" : "");
  }

  const CsvOptions& options_;
  std::vector<std::string> notes_, names_;  // names_: the first heading
  std::string where_;                       // FILE:LINE of the first heading
  bool row_names_ = false;
  std::set<std::size_t> index_columns_;  // nameless columns that number or name the rows
  std::vector<std::size_t> columns_;     // of values
  std::size_t values_ = 0;               // per sample; 0: not yet known
  std::size_t label_ = 0;                // column of the label
};

/// True for 1,5 and 12.5% and $1,234.50: numbers with signs of money or percent, commas or blanks.
bool is_quantity(std::string text) {
  std::erase_if(text, [](unsigned char c) {
    return c >= 0x80 || std::string_view("$%, '").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return is_number(text);
}

/// The labels, which are all integers or all names.
class CsvLabels {
 public:
  /// Takes the class names of the data file `from`; without labels there, names are numbered in order.
  explicit CsvLabels(const std::string& from) : from_(from) {
    if (from.empty()) return;
    const hdf5::File file = hdf5::File::open(from);
    if (file.exists("/y")) names_ = names_of(file.open_dataset("/y"), "classes");
    for (std::size_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = static_cast<std::int64_t>(i);
    stored_names_ = !names_.empty();
    stored_integers_ = file.exists("/y") && !stored_names_;
  }

  /// Records a label in the first pass. Among numbers NA stands for a missing value; among names it is a name
  /// (the country).
  void see(const CsvFile& file, std::size_t field) {
    const std::string_view text = file.fields()[field];
    const auto invalid = [&](const std::string& why) {
      return DataError("{}: the label, {}, is '{}'{}", file.where(), describe(file, field), short_text(text),
                       why);
    };
    double value = 0;
    const bool mark = is_missing(text),
               number = !stored_names_ && !mark && parse_value(text, value) && std::isfinite(value);
    if (text.empty() || (mark && (stored_integers_ || !integers_.empty())))
      throw DataError("{}", missing(file, field));
    if (stored_integers_ && !number)
      throw invalid(fmt::format(", but labels of {} are numbers without names", from_));
    if (number && !first_mark_.empty()) throw DataError("{}", first_mark_);
    if (number ? !numbers_.empty() : !integers_.empty())
      throw invalid(fmt::format(", but earlier labels are {}", number ? "names" : "integers"));
    ++samples_;
    if (number && value >= 0 && value < 9e15 && std::floor(value) == value) {
      integers_.insert(static_cast<std::int64_t>(value));
      return;
    }
    if (number)
      throw invalid(
          ": labels must be integers of 0 or more, or names (for task.name = regression, write an HDF5 file "
          "with an array y of floats)");
    if (numbers_.contains(text)) return;
    if (stored_names_)
      throw invalid(
          fmt::format(", which is not a class of {}; its classes are {}", from_, fmt::join(names_, ", ")));
    if (!mark) first_mark_.clear();
    if (mark && numbers_.empty()) first_mark_ = missing(file, field);
    numbers_.emplace(text, 0);
    name_bytes_ += text.size() + 1;
    if (name_bytes_ > max_name_bytes)
      throw DataError(
          "{}: the label, {}, has {} different names so far, more than a data file can store: select another "
          "column, or number the classes",
          file.where(), describe(file, field), numbers_.size());
  }

  /// Warnings about labels that may be values to predict, or missing values. Call after the first pass.
  std::vector<std::string> warnings() const {
    constexpr std::int64_t few = 20, many = 256;
    std::vector<std::string> found, marks;
    if (stored_names_ || stored_integers_) return found;
    std::ranges::copy_if(names_, std::back_inserter(marks), is_missing);
    if (!marks.empty())
      found.push_back(
          fmt::format("labels '{}' are classes; if they stand for missing values, remove their lines",
                      fmt::join(marks, "', '")));
    const std::int64_t used = std::ssize(integers_) + std::ssize(names_),
                       classes = names_.empty() ? *std::ranges::max_element(integers_) + 1 : used;
    const bool quantities = !names_.empty() && std::ranges::all_of(names_, is_quantity);
    if ((classes > 2 * used && classes > many) || (used >= few && 2 * used > samples_) || quantities)
      found.push_back(fmt::format(
          "labels {} make {} classes, and {} of them occur in {} samples; to predict values, write "
          "an HDF5 file with an array y of floats for task.name = regression",
          names_.empty() ? fmt::format("up to {}", classes - 1)
                         : fmt::format("such as '{}'", short_text(names_.front())),
          classes, used, samples_));
    return found;
  }

  void end_first_pass() {
    if (stored_names_) return;
    for (auto& [name, number] : numbers_) {
      number = std::ssize(names_);
      names_.push_back(name);
    }
  }

  /// The number of a label; none if the first pass did not record it.
  std::optional<std::int64_t> number(std::string_view text) const {
    const auto found = numbers_.find(text);
    if (found != numbers_.end()) return found->second;
    double value = 0;
    return names_.empty() && parse_value(text, value) && value >= 0 && value < 9e15
               ? std::optional(static_cast<std::int64_t>(value))
               : std::nullopt;
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  std::string from_;
  bool stored_names_ = false, stored_integers_ = false;
  std::int64_t samples_ = 0;
  std::string first_mark_;  // the error to throw if the labels are numbers
  std::size_t name_bytes_ = 0;
  std::vector<std::string> names_;  // from the data file `from`, or set by end_first_pass()
  std::map<std::string, std::int64_t, std::less<>> numbers_;  // of names
  std::unordered_set<std::int64_t> integers_;
};

/// The distance from |value| to the next float32.
double step_at(double value) {
  const float there = static_cast<float>(std::abs(value));
  return static_cast<double>(std::nextafter(there, std::numeric_limits<float>::infinity()) - there);
}

/// The precision that a column loses when its values are written as float32.
struct CsvSpread {
  double least, largest, last;
  std::int64_t changes = 0, lost = 0;  // differences between adjacent lines
  bool rounded = false;                // whether float32 rounds any value

  void see(double value) {
    constexpr double rounding = 1e-13;  // relative; smaller differences are rounding of sums in double
    const double change = std::abs(value - last);
    rounded |= static_cast<double>(static_cast<float>(value)) != value;
    changes += change > rounding * std::abs(value);
    lost += change > rounding * std::abs(value) && change < step_at(value);
    least = std::min(least, value);
    largest = std::max(largest, value);
    last = value;
  }

  double step() const { return step_at(std::max(-least, largest)); }
  /// Whether the range of the column is narrow for its distance from 0, or adjacent values often become
  /// equal.
  bool is_lost() const {
    const bool narrow = largest - least < 1000 * step();
    return rounded && changes > 0 && (narrow || 4 * lost > changes);
  }
};

bool is_byte(double value) { return value >= 0 && value <= 255 && std::floor(value) == value; }

}  // namespace

Prepared prepare_csv(std::span<const std::string> inputs, const Output& output, const CsvOptions& options) {
  if (inputs.empty()) throw UsageError("prepare csv: the list of files is empty");
  if (options.image.rank() != 0 && (options.image.rank() != 3 || options.image.numel() < 1)) {
    throw UsageError("--shape {}: must be channels,height,width", to_string(options.image));
  }
  check_output(inputs, output, options.statistics);

  ImageFile contents{.bytes = true};
  CsvSamples samples(inputs, options);
  contents.value_names = samples.value_names();
  if (!options.statistics.empty()) {  // values get the type of the training data
    const hdf5::File file = hdf5::File::open(options.statistics);
    const hdf5::Dataset x = open_images(file);
    check_same_names(samples.heading_where(), contents.value_names, options.statistics, names_of(x, "names"),
                     "value");
    contents.bytes = x.dtype() == DType::uint8;
  }
  CsvLabels labels(options.statistics);
  std::vector<CsvSpread> spreads;
  for (const std::string& path : inputs) {
    samples.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
      labels.see(file, label);
      if (spreads.empty())
        for (const double value : values) spreads.push_back({value, value, value});
      for (std::size_t i = 0; i < values.size(); ++i) spreads[i].see(values[i]);
      contents.bytes = contents.bytes && std::ranges::all_of(values, is_byte);
      ++contents.images;
    });
  }
  labels.end_first_pass();
  contents.image = samples.image();
  contents.class_names = labels.names();

  Prepared prepared = write_images(output, contents, options.statistics, [&](ImageWriter& writer) {
    std::vector<std::uint8_t> bytes;
    std::vector<float> floats;
    for (const std::string& path : inputs) {
      samples.read(path, [&](std::span<const double> values, const CsvFile& file, std::size_t label) {
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
  if (contents.value_names.empty() && samples.has_heading())
    prepared.warnings.push_back(fmt::format(
        "{}: the column names exceed {} bytes and are not stored: other data files cannot be checked "
        "for the same columns",
        samples.heading_where(), max_name_bytes));
  for (std::size_t i = 0; i < spreads.size() && !contents.bytes; ++i)
    if (const CsvSpread& column = spreads[i]; column.is_lost())
      prepared.warnings.push_back(fmt::format(
          "{} has values from {} to {}, which float32 stores in steps of {}: subtract a common offset",
          samples.column_of(i), column.least, column.largest, column.step()));
  std::ranges::move(labels.warnings(), std::back_inserter(prepared.warnings));
  return prepared;
}

}  // namespace lockstep::data
