#include "data/table_rows.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

/// "NAME=WHAT", where WHAT is after the last sign; without one all is the name.
std::pair<std::string, std::string> name_and_word(const std::string& word) {
  const std::size_t sign = word.rfind('=');
  if (sign == std::string::npos) return {word, ""};
  return {word.substr(0, sign), word.substr(sign + 1)};
}

/// The names of columns in an option, as its value.
std::string option_value(const std::vector<std::string>& names) {
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.,=/";
  std::string value;
  for (const std::string& name : names) {
    if (!value.empty()) value += ',';
    value += name.find_first_of(",\"") == std::string::npos ? name : fmt::format("\"{}\"", name);
  }
  return value.find_first_not_of(plain) == std::string::npos ? value : fmt::format("'{}'", value);
}

}  // namespace

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

TableRows::TableRows(std::span<const std::string> inputs, const CsvOptions& options, const Table* known)
    : options_(options), known_(known), target_seen_(known || options.target.empty()) {
  for (const std::string& name : {options.label, options.target})
    if (name != "last" && name != "first" && name != "none" && !name.empty()) options_.names.push_back(name);
  if (known) {
    table_ = *known;
    if (options.label == "none") table_.target.reset();
    for (const TableColumn& column : known->columns) options_.names.push_back(column.name);
  }
  if (options.image.rank() == 3) values_ = static_cast<std::size_t>(options.image.numel());
  for (const std::string& path : inputs) see_heading(CsvFile(path, options_));
  if (known) return;
  for (const std::string& path : inputs) keep_values(path);
  if (!names_.empty()) assign_columns(names_.size(), CsvFile(inputs.front(), options_));
  for (const std::size_t column : index_columns_)
    notes_.push_back(fmt::format("{}: {}, without a name, {}: skipped", where_,
                                 numbered_name("column", column, names_),
                                 row_names_ ? "names the rows" : "numbers the rows"));
}

bool TableRows::must_learn() const {
  return !known_ && (!options_.categorical.empty() || !options_.missing.empty());
}

void TableRows::see_heading(const CsvFile& file) {
  if (file.empty_columns() > 0)
    notes_.push_back(fmt::format("{}: {} at the end, without a name or a value: skipped", file.path(),
                                 pluralized(file.empty_columns(), "column")));
  const std::vector<std::string>& names = file.heading();
  if (names.empty()) return;
  if (!options_.table) notes_.push_back(file.heading_where() + " is a heading, skipped");
  if (!names_.empty() && !known_)
    return check_same_names(file.heading_where(), names, where_, names_, "field");
  names_ = names;
  where_ = file.heading_where();
  row_names_ = file.row_names();
  if (known_) return;
  const bool targeted = options_.label != "none" || !options_.target.empty();
  const std::size_t target = targeted ? target_column(file, names.size()) : names.size();
  // pandas, readr and spreadsheets write row numbers in columns at an edge, and may do so repeatedly.
  const auto may_number = [&](std::size_t i) { return i != target && is_nameless(names[i]); };
  for (std::size_t i = 0; i < names.size() && may_number(i); ++i) index_columns_.insert(i);
  for (std::size_t i = names.size(); i-- > 0 && may_number(i);) index_columns_.insert(i);
  if (index_columns_.size() + targeted >= names.size()) index_columns_.clear();  // no column has a name
}

/// Keeps nameless columns whose first value is not a row number.
void TableRows::keep_values(const std::string& path) {
  CsvFile file(path, options_);
  if (!index_columns_.empty() && file.next())
    std::erase_if(index_columns_, [&](std::size_t i) {
      return !(row_names_ && i == 0) && (i >= file.fields().size() || !is_whole(file.fields()[i]));
    });
}

/// Makes the table of what the options say, of lines with so many fields.
void TableRows::assign_columns(std::size_t columns, const CsvFile& file) {
  const auto index_of = [&](const std::string& name, const char* option) {
    if (const auto found = column_named(name, columns)) return *found;
    throw UsageError("--{} {}: {} has no column of this name: there are {}{}", option, quote(name),
                     names_.empty() ? file.path() : where_, columns,
                     names_.empty() ? " without a heading" : fmt::format(": {}", list_of(names_, 100)));
  };
  const auto set_of = [&](std::map<std::size_t, std::string>& into, const std::vector<std::string>& words,
                          const char* option) {
    for (const std::string& word : words) {
      const auto whole = column_named(word, columns);
      const auto [name, kind] = name_and_word(word);
      into[whole ? *whole : index_of(name, option)] = whole ? "" : kind;
    }
  };
  std::map<std::size_t, std::string> dropped, categories, dates, fills;
  set_of(dropped, options_.drop, "drop");
  set_of(categories, options_.categorical, "categorical");
  set_of(dates, options_.dates, "date");
  std::string fill_of_all;
  std::vector<std::string> fills_by_name;
  for (const std::string& word : options_.missing)
    word.find('=') == std::string::npos ? void(fill_of_all = word) : fills_by_name.push_back(word);
  set_of(fills, fills_by_name, "missing");
  if (options_.label != "none" || !options_.target.empty()) {
    const std::size_t target = target_column(file, columns);
    const std::string fill = fills.contains(target) ? fills[target] : fill_of_all;
    table_.target = {.name = name_of(target), .drops = fill == "drop"};
    table_.has_classes = options_.target.empty();
    target_field_ = target;
  }
  for (const auto& [column, word] : dropped) dropped_.insert(column);
  for (std::size_t i = 0; i < columns; ++i) {
    if (i == target_field_ || index_columns_.contains(i) || dropped_.contains(i)) continue;
    using Kind = TableColumn::Kind;
    TableColumn column{.name = name_of(i)};
    const auto kind_of = [&](const auto& words, const char* option, const char* word, Kind plain,
                             Kind other) {
      const auto found = words.find(i);
      if (found == words.end()) return;
      if (!found->second.empty() && found->second != word)
        throw UsageError("--{} {}={}: must be the name alone, or with ={}", option, column.name,
                         found->second, word);
      column.kind = found->second.empty() ? plain : other;
    };
    kind_of(categories, "categorical", "code", Kind::one_hot, Kind::code);
    kind_of(dates, "date", "sines", Kind::date, Kind::date_and_sines);
    const std::string fill = fills.contains(i) ? fills[i] : fill_of_all;
    double value = 0;
    column.drops = fill == "drop";
    if (column.is_category() && (fill == "mean" || fill == "median")) column.fill = 0;
    if (!fill.empty() && fill != "drop" && fill != "mean" && fill != "median" && !column.is_category()) {
      if (!(column.is_date() ? parse_date(fill, value) : parse_value(fill, value)))
        throw UsageError("--missing {}{}: must be drop, mean, median or a {}",
                         fills.contains(i) ? column.name + "=" : "", fill,
                         column.is_date() ? "date" : "number");
      column.fill = value;
    }
    fields_.push_back(i);
    fills_.push_back(fill);
    table_.columns.push_back(std::move(column));
  }
  if (values_ == 0) values_ = table_.columns.size();
}

/// Finds the known columns in a file, by name.
void TableRows::find_known(const CsvFile& file) {
  std::vector<std::string> names = file.heading(), missing, ignored;
  for (std::size_t i = names.size(); i < file.fields().size(); ++i)
    names.push_back(fmt::format("column {}", i + 1));
  const auto find = [&](const TableColumn& column) {
    if (std::ranges::count(names, column.name) > 1)
      throw DataError("{}: several columns are named '{}'", file.heading_where(), column.name);
    const auto found = std::ranges::find(names, column.name);
    if (found == names.end()) missing.push_back(column.name);
    return static_cast<std::size_t>(found - names.begin());
  };
  fields_.clear();
  for (const TableColumn& column : table_.columns) fields_.push_back(find(column));
  if (table_.target) target_field_ = find(*table_.target);
  if (!missing.empty())
    throw DataError("{}: columns that training learned from are missing: {}; it has {}{}",
                    file.heading().empty() ? file.where() : file.heading_where(), list_of(missing, 40),
                    list_of(names, 40), file.heading().empty() ? " without a heading" : "");
  for (std::size_t i = 0; i < names.size(); ++i)
    if (std::ranges::count(fields_, i) == 0 && !(known_->target && names[i] == known_->target->name))
      ignored.push_back(names[i]);
  if (!ignored.empty())
    note(fmt::format("{}: ignored, as training did not learn from {}: {}", file.path(),
                     ignored.size() == 1 ? "this column" : "these columns", list_of(ignored, 20)));
}

/// The first target that is there tells whether it is a number or a class.
void TableRows::see_target(CsvFile& file) {
  const std::string_view text = file.fields()[*target_field_];
  double ignored = 0;
  if (is_missing(text)) return;
  table_.has_classes = !file.number(text, ignored);
  target_seen_ = true;
}

/// DataError if a skipped column holds a value in this line.
void TableRows::check_index_columns(const CsvFile& file) const {
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

void TableRows::check_fields(const CsvFile& file, bool first) {
  const std::size_t fields = file.fields().size();
  if (known_) {
    if (first) values_ = file.heading().empty() ? fields : file.heading().size();
    if (fields == values_) return;
    throw DataError("{}: has {}, expected {}; the separator is {}{}", file.where(),
                    pluralized(fields, "field"), values_, file.separator_name(), file.other_separator());
  }
  const bool targeted = options_.label != "none" || !options_.target.empty();
  const std::size_t others =
      index_columns_.size() + targeted + (table_.columns.empty() ? options_.drop.size() : dropped_.size());
  if (values_ == 0 && fields > others) values_ = fields - others;
  if (fields == values_ + others && fields > others) return;
  std::string expected = values_ == 0 ? "values" : fmt::format("{} values", values_);
  if (!dropped_.empty()) expected += fmt::format(", {} to drop", pluralized(dropped_.size(), "column"));
  if (!index_columns_.empty())
    expected += fmt::format(", {} without a name", pluralized(index_columns_.size(), "column"));
  throw DataError("{}: has {} field{}, expected {}{}; the separator is {}{}", file.where(), fields,
                  fields == 1 ? "" : "s", expected, targeted ? " and a label" : "", file.separator_name(),
                  file.other_separator());
}

std::optional<std::size_t> TableRows::column_named(const std::string& name, std::size_t columns) const {
  if (const auto found = std::ranges::find(names_, name); found != names_.end())
    return static_cast<std::size_t>(found - names_.begin());
  std::size_t number = 0;
  if (parse_number(name, number) && number >= 1 && number <= columns) return number - 1;
  return std::nullopt;
}

std::size_t TableRows::target_column(const CsvFile& file, std::size_t columns) const {
  const bool values = !options_.target.empty();
  const std::string& label = values ? options_.target : options_.label;
  if (label == "last" && !values) return columns - 1;
  if (label == "first" && !values) return row_names_ ? 1 : 0;
  if (std::ranges::count(names_, label) > 1)
    throw UsageError("{}: several columns are named '{}': give the number of the label's column, from 1",
                     where_, label);
  if (const auto found = column_named(label, columns)) return *found;
  throw UsageError("{}: no column is named '{}', the {}: there are {} columns{}{}",
                   names_.empty() ? file.where() : where_, label, values ? "target" : "label", columns,
                   names_.empty() ? " without a heading" : fmt::format(", {}", fmt::join(names_, ", ")),
                   values ? "" : " (--label none: the table has no labels)");
}

bool TableRows::skips(const CsvFile& file) const {
  if (options_.keeps_lines) return false;
  for (std::size_t i = 0; i < table_.columns.size(); ++i)
    if (table_.columns[i].drops && is_missing(field(file, i))) return true;
  if (!table_.target || !table_.target->drops) return false;
  const std::string_view text = file.fields()[*target_field_];
  return text.empty() || (!table_.has_classes && is_missing(text));
}

double TableRows::number(CsvFile& file, std::size_t i) {
  const TableColumn& column = table_.columns[i];
  const std::string_view text = field(file, i);
  double value = 0;
  if (column.kind == TableColumn::Kind::number && file.number(text, value) &&
      std::abs(value) <= std::numeric_limits<float>::max())
    return value;
  const bool missing = is_missing(text);
  if (missing && column.fill) return *column.fill;
  if (missing && column.is_category() && options_.unknown_as_missing) return 0;
  try {
    if (!missing) return column.number_of(text, fields_[i], file, options_.unknown_as_missing);
    if (!known_) throw DataError("{}", missing_value(file, fields_[i]));
    throw DataError(
        "{}: {} is missing ('{}'): {}", file.where(), describe(file, fields_[i]), text,
        column.drops ? "training left such lines out" : "training learned no fill for this column");
  } catch (const DataError& error) {
    const std::string help = known_ ? "" : advice(file.path());
    throw DataError("{}{}", error.what(), help);
  }
}

void TableRows::values(CsvFile& file, std::vector<double>& x, std::vector<std::int64_t>& codes) {
  x.clear();
  codes.clear();
  for (std::size_t i = 0; i < table_.columns.size(); ++i)
    table_.columns[i].add_values(number(file, i), x, codes);
}

std::string TableRows::advice(const std::string& path) const {
  constexpr int max_lines = 10'000;
  constexpr std::size_t few = 50, max_names = 20;
  struct Seen {
    int missing = 0, dates = 0, texts = 0;
    bool damaged = false;
    std::set<std::string, std::less<>> different;
  };
  std::vector<Seen> seen(table_.columns.size());
  int lines = 0;
  for (CsvFile file(path, options_); lines < max_lines && file.next(); ++lines) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (fields_[i] >= file.fields().size()) continue;
      const std::string_view text = field(file, i);
      double ignored = 0;
      if (is_missing(text)) ++seen[i].missing;
      if (is_missing(text) || table_.columns[i].kind != TableColumn::Kind::number ||
          file.number(text, ignored))
        continue;
      // A damaged number (1e400, 3.5x) makes no category.
      if (!parse_date(text, ignored) &&
          std::string_view("+-.0123456789").find(text[0]) != std::string_view::npos)
        seen[i].damaged = true;
      ++seen[i].texts;
      seen[i].dates += parse_date(text, ignored);
      if (seen[i].different.size() <= few) seen[i].different.emplace(text);
    }
  }
  std::array<std::vector<std::string>, 3> found;  // dates, categories, others
  bool missing = false;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    missing |=
        seen[i].missing > 0 && !table_.columns[i].fill && !table_.columns[i].drops && fills_[i].empty();
    if (seen[i].texts == 0 || seen[i].damaged) continue;
    const bool repeat =
        seen[i].different.size() <= few && 2 * std::ssize(seen[i].different) <= seen[i].texts + 1;
    const std::size_t kind = seen[i].dates == seen[i].texts ? 0 : repeat ? 1 : 2;
    found.at(kind).push_back(names_.empty() ? fmt::format("{}", fields_[i] + 1) : table_.columns[i].name);
  }
  std::string text;
  for (std::size_t kind = 0; kind < found.size(); ++kind) {
    if (found.at(kind).empty() || found.at(kind).size() > max_names) continue;
    constexpr std::array options{"date", "categorical", "drop"};
    text += fmt::format(" --{} {}", options.at(kind), option_value(found.at(kind)));
  }
  if (missing) text += " --missing median";
  return text.empty() ? "" : fmt::format("; try{}", text);
}

}  // namespace lockstep::data
