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

/// The words of an option as its value in a shell.
std::string option_value(const std::vector<std::string>& words) {
  std::string value;
  for (const std::string& word : words) {
    std::string quoted;
    for (const char letter : word) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
    const bool is_plain = word.find_first_of(",\"") == std::string::npos;
    value += fmt::format("{}{}", value.empty() ? "" : ",", is_plain ? word : fmt::format("\"{}\"", quoted));
  }
  return shell_quoted(value);
}

using Kind = TableColumn::Kind;
using Fill = TableColumn::Fill;

/// What a word of --missing says.
Fill fill_named(std::string_view word) {
  constexpr std::array<std::string_view, 5> words{"", "any other", "mean", "median", "drop"};  // as of Fill
  const auto found = std::ranges::find(words, word);
  return found == words.end() ? Fill::value : static_cast<Fill>(found - words.begin());
}

bool parse_finite(std::string_view text, double& value) {
  return parse_value(text, value) && std::abs(value) <= std::numeric_limits<float>::max();
}

}  // namespace

ColumnIndex index_of(std::span<const std::string> names) {
  ColumnIndex index, without;
  const auto add = [](ColumnIndex& to, std::string_view name, std::size_t column) {
    ++to.try_emplace(std::string(name), column, 0).first->second.second;
  };
  for (std::size_t i = 0; i < names.size(); ++i) {
    add(index, names[i], i);
    add(without, without_units(names[i]), i);
  }
  index.merge(without);
  return index;
}

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
    : options_(options), known_(known) {
  for (const std::string& name : {options.label, options.target})
    if (name != "last" && name != "first" && name != "none" && !name.empty()) options_.names.push_back(name);
  if (known) {
    table_ = *known;
    if (options.label == "none") table_.target.reset();
    for (const TableColumn& column : known->columns) options_.names.push_back(column.name);
    options_.may_have_commas = known->decimal_commas;
  }
  if (options.image.rank() == 3) values_ = static_cast<std::size_t>(options.image.numel());
  for (const std::string& path : inputs) see_heading(CsvFile(path, options_));
  if (known) return;
  for (const std::string& path : inputs) keep_values(path);
  for (const std::string& path : inputs) {
    CsvFile file(path, options_);
    if (!names_.empty()) assign_columns(names_.size(), file);
    if (!names_.empty() || !table_.columns.empty()) break;
    if (file.next()) assign_columns(file.fields().size(), file);
  }
  if (!options.target.empty()) find_target_kind(inputs);
  for (const std::size_t column : index_columns_)
    notes_.push_back(fmt::format("{}: {}, without a name, {}: skipped", where_,
                                 numbered_name("column", column, names_),
                                 row_names_ ? "names the rows" : "numbers the rows"));
}

bool TableRows::must_learn() const {
  return !known_ && std::ranges::any_of(table_.columns, [](const TableColumn& column) {
    return column.is_category() || column.fill_by == Fill::mean || column.fill_by == Fill::median;
  });
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
  index_ = index_of(names_);
  where_ = file.heading_where();
  row_names_ = file.row_names();
  if (known_) return;
  const std::size_t target = has_target() ? target_column(file, names.size()) : names.size();
  // pandas, readr and spreadsheets write row numbers in columns at an edge, and may do so repeatedly.
  const auto may_number = [&](std::size_t i) { return i != target && is_nameless(names[i]); };
  for (std::size_t i = 0; i < names.size() && may_number(i); ++i) index_columns_.insert(i);
  for (std::size_t i = names.size(); i-- > 0 && may_number(i);) index_columns_.insert(i);
  if (index_columns_.size() + has_target() >= names.size()) index_columns_.clear();  // no column has a name
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
  using Words = std::map<std::size_t, std::string>;  // what an option says of columns
  const auto words_of = [&](const std::vector<std::string>& words, const char* option) {
    Words found;
    for (const std::string& word : words) {
      const auto whole = column_named(word, columns);
      const std::size_t sign = whole ? word.size() : std::min(word.rfind('='), word.size());
      const std::string name = word.substr(0, sign), kind = word.substr(std::min(sign + 1, word.size()));
      const auto column = whole ? whole : column_named(name, columns);
      if (!column)
        throw UsageError("--{} {}: {} has no column of this name: there are {}{}", option, quote(name),
                         names_.empty() ? file.path() : where_, columns,
                         names_.empty() ? " without a heading" : fmt::format(": {}", list_of(names_, 100)));
      if (!found.emplace(*column, kind).second) throw UsageError("--{}: names {} twice", option, quote(name));
    }
    return found;
  };
  std::vector<std::string> of_all, of_columns;
  for (const std::string& word : options_.missing)
    (word.find('=') == std::string::npos ? of_all : of_columns).push_back(word);
  const Words dropped = words_of(options_.drop, "drop"),
              categories = words_of(options_.categorical, "categorical"),
              dates = words_of(options_.dates, "date"), fills = words_of(of_columns, "missing");
  double value = 0;
  if (of_all.size() > 1)
    throw UsageError("--missing {}: give one for all columns, and NAME=KIND for others", list_of(of_all));
  if (!of_all.empty() && fill_named(of_all[0]) == Fill::value && !parse_finite(of_all[0], value))
    throw UsageError("--missing {}: must be drop, mean, median or a finite number; for one column NAME=KIND",
                     quote(of_all[0]));
  const auto fill_of = [&](std::size_t column) {
    const auto own = fills.find(column);
    return own != fills.end() ? own->second : of_all.empty() ? "" : of_all[0];
  };
  const auto check_name = [&](std::size_t column) {  // a new table could not tell equal names apart
    if (names_.empty() || is_nameless(names_[column]) || index_.at(names_[column]).second == 1) return;
    const auto first = std::ranges::find(names_, names_[column]),
               second = std::find(first + 1, names_.end(), *first);
    throw DataError("{}: columns {} and {} are both named {}: rename one", where_, first - names_.begin() + 1,
                    second - names_.begin() + 1, quote(*first));
  };
  std::map<std::size_t, const char*> option_of;  // of columns that are no numbers
  if (has_target()) {
    const std::size_t target = target_column(file, columns);
    check_name(target);
    const Fill fill = fill_named(fill_of(target));
    if (fills.contains(target) && fill != Fill::drop)
      throw UsageError("--missing {}={}: is of the target, of which lines can only be left out: drop",
                       name_of(target), fill_of(target));
    table_.target = {.name = name_of(target), .fill_by = fill == Fill::drop ? Fill::drop : Fill::none};
    table_.has_classes = options_.target.empty();
    table_.drops_marks = fills.contains(target);
    target_field_ = target;
    option_of[target] = options_.target.empty() ? "label" : "target";
  }
  for (const auto& [words, option] :
       {std::pair(&dropped, "drop"), {&categories, "categorical"}, {&dates, "date"}})
    for (const auto& [column, word] : *words)
      if (const auto [other, is_new] = option_of.emplace(column, option); !is_new)
        throw UsageError("--{} {}: is the column of --{}, too; remove one", option, quote(name_of(column)),
                         other->second);
  dropped_ = dropped.size();
  table_.decimal_commas = options_.decimal == ',';
  for (std::size_t i = 0; i < columns; ++i) {
    if (dropped.contains(i)) {
      if (fills.contains(i))
        throw UsageError("--missing {}: is the column of --drop, too; remove one", quote(name_of(i)));
      if (is_printable(name_of(i))) table_.dropped.push_back(name_of(i));
    }
    if (i == target_field_ || index_columns_.contains(i) || dropped.contains(i)) continue;
    check_name(i);
    TableColumn column{.name = name_of(i)};
    const auto kind_of = [&](const Words& words, const char* option, const char* word, Kind plain,
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
    const std::string fill = fill_of(i);
    const bool is_own = fills.contains(i);
    column.fill_by = fill_named(fill);
    if (column.is_category()) {  // without a hot value, or one of its categories
      if (column.fill_by == Fill::value && is_own) column.categories = {fill};
      if (column.is_filled()) column.fill_by = Fill::value;
    } else if (column.fill_by == Fill::value && column.is_date() && !is_own) {
      column.fill_by = Fill::none;  // a number is no date
    } else if (column.fill_by == Fill::value) {
      if (!(column.is_date() ? parse_date(fill, column.fill) : parse_finite(fill, column.fill)))
        throw UsageError("--missing {}={}: must be drop, mean, median or a {}", column.name, fill,
                         column.is_date() ? "date" : "finite number");
    }
    fields_.push_back(i);
    table_.columns.push_back(std::move(column));
  }
  if (values_ == 0) values_ = table_.columns.size();
}

/// Finds the known columns in a file, by name.
void TableRows::find_known(const CsvFile& file) {
  std::vector<std::string> names = file.heading(), missing, ignored;
  for (std::size_t i = names.size(); i < file.fields().size(); ++i)
    names.push_back(fmt::format("column {}", i + 1));
  const ColumnIndex index = index_of(names);
  std::vector<bool> is_known(names.size());
  const auto find = [&](const std::string& name, bool must = true) {
    const auto found = index.find(name);
    const auto [at, count] = found == index.end() ? std::pair(std::size_t{0}, std::size_t{0}) : found->second;
    if (count > 0) is_known[at] = true;
    if (must && count > 1) throw DataError("{}: several columns are named '{}'", file.heading_where(), name);
    if (must && count == 0) missing.push_back(name);
    return at;
  };
  fields_.clear();
  for (const TableColumn& column : table_.columns) fields_.push_back(find(column.name));
  if (table_.target) target_field_ = find(table_.target->name);
  if (!missing.empty())
    throw DataError("{}: columns that training learned from are missing: {}; it has {}{}",
                    file.heading().empty() ? file.where() : file.heading_where(), list_of(missing, 40),
                    list_of(names, 40), file.heading().empty() ? " without a heading" : "");
  if (known_->target) find(known_->target->name, false);
  for (const std::string& name : known_->dropped) find(name, false);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!is_known[i] && !is_nameless(names[i])) ignored.push_back(names[i]);
  if (!ignored.empty())
    note(fmt::format("{}: ignored, as training did not learn from {}: {}", file.path(),
                     ignored.size() == 1 ? "this column" : "these columns", list_of(ignored, 20)));
}

/// The first target that is there tells whether all are numbers or classes.
void TableRows::find_target_kind(std::span<const std::string> inputs) {
  for (const std::string& path : inputs)
    for (CsvFile file(path, options_); file.next();) {
      double ignored = 0;
      if (*target_field_ >= file.fields().size() || is_missing(file.fields()[*target_field_])) continue;
      const std::string_view field = file.fields()[*target_field_];
      table_.has_classes = !file.number(field, ignored) && !is_too_large(field);
      return;
    }
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
  const std::size_t others = index_columns_.size() + has_target() + dropped_;
  if (values_ == 0 && fields > others) values_ = fields - others;
  if (fields == values_ + others && fields > others) return;
  std::string expected = values_ == 0 ? "values" : fmt::format("{} values", values_);
  if (dropped_ > 0) expected += fmt::format(", {} to drop", pluralized(dropped_, "column"));
  if (!index_columns_.empty())
    expected += fmt::format(", {} without a name", pluralized(index_columns_.size(), "column"));
  throw DataError("{}: has {} field{}, expected {}{}; the separator is {}{}", file.where(), fields,
                  fields == 1 ? "" : "s", expected, has_target() ? " and a label" : "", file.separator_name(),
                  file.other_separator());
}

std::optional<std::size_t> TableRows::column_named(const std::string& name, std::size_t columns) const {
  if (const auto found = index_.find(name); found != index_.end()) {
    if (found->second.second == 1) return found->second.first;
    throw UsageError("{}: several columns are named '{}': give the number of the column, from 1", where_,
                     name);
  }
  std::size_t number = 0;
  if (parse_number(name, number) && number >= 1 && number <= columns) return number - 1;
  return std::nullopt;
}

std::size_t TableRows::target_column(const CsvFile& file, std::size_t columns) const {
  const bool values = !options_.target.empty();
  const std::string& label = values ? options_.target : options_.label;
  if (label == "last" && !values) return columns - 1;
  if (label == "first" && !values) return row_names_ ? 1 : 0;
  if (const auto found = column_named(label, columns)) return *found;
  throw UsageError("{}: no column is named '{}', the {}: there are {} columns{}{}",
                   names_.empty() ? file.where() : where_, label, values ? "target" : "label", columns,
                   names_.empty() ? " without a heading" : fmt::format(", {}", fmt::join(names_, ", ")),
                   values ? "" : " (--label none: the table has no labels)");
}

bool TableRows::skips(const CsvFile& file) const {
  if (options_.keeps_lines) return false;
  for (std::size_t i = 0; i < table_.columns.size(); ++i)
    if (table_.columns[i].fill_by == Fill::drop && is_missing(field(file, i))) return true;
  if (!table_.target || table_.target->fill_by != Fill::drop) return false;
  const std::string_view text = file.fields()[*target_field_];
  return text.empty() || ((!table_.has_classes || table_.drops_marks) && is_missing(text));
}

double TableRows::number(CsvFile& file, std::size_t i) {
  const TableColumn& column = table_.columns[i];
  const std::string_view text = field(file, i);
  double value = 0;
  if (column.kind == Kind::number && file.number(text, value) &&
      std::abs(value) <= std::numeric_limits<float>::max())
    return value;
  const bool missing = is_missing(text);
  if (missing && column.is_filled()) return column.fill;
  if (missing && column.is_category() && options_.unknown_as_missing) return 0;
  try {
    if (!missing) return column.number_of(text, fields_[i], file, options_.unknown_as_missing);
    if (!known_) throw DataError("{}", missing_value(file, fields_[i]));
    throw DataError("{}: {} is missing ('{}'): {}", file.where(), describe(file, fields_[i]), text,
                    column.fill_by == Fill::drop ? "training left such lines out"
                                                 : "training learned no fill for this column");
  } catch (const DataError& error) {
    const std::string help = known_ ? "" : advice(file.path());
    throw DataError("{}{}", error.what(), help);
  }
}

double TableRows::target(CsvFile& file) const {
  const std::string_view text = file.fields()[*target_field_];
  if (is_missing(text))
    throw DataError("{}{}", missing_value(file, *target_field_),
                    known_ ? "" : " (--missing drop leaves such lines out)");
  return table_.target->number_of(text, *target_field_, file, false);
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
      if (is_missing(text) || table_.columns[i].kind != Kind::number || file.number(text, ignored)) continue;
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
  std::vector<std::string> missing = options_.missing;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::string name = names_.empty() ? fmt::format("{}", fields_[i] + 1) : table_.columns[i].name;
    const bool texts = seen[i].texts > 0 && !seen[i].damaged, dates = seen[i].dates == seen[i].texts,
               repeat =
                   seen[i].different.size() <= few && 2 * std::ssize(seen[i].different) <= seen[i].texts + 1;
    if (texts) found.at(dates ? 0 : repeat ? 1 : 2).push_back(name);
    if (seen[i].missing > 0 && table_.columns[i].fill_by == Fill::none && (!texts || dates || repeat))
      missing.push_back(name + "=median");
  }
  std::string text;
  for (std::size_t kind = 0; kind < found.size(); ++kind) {
    if (found.at(kind).empty() || found.at(kind).size() > max_names) continue;
    constexpr std::array options{"date", "categorical", "drop"};
    text += fmt::format(" --{} {}", options.at(kind), option_value(found.at(kind)));
  }
  if (missing.size() > options_.missing.size())
    text += " --missing " + (options_.missing.empty() ? "median" : option_value(missing));
  return text.empty() ? "" : fmt::format("; try{}", text);
}

}  // namespace lockstep::data
