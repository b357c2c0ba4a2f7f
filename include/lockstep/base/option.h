// Options that describe themselves: a section of a configuration is a struct, and each of its options has a
// row with its name, allowed values, unit, meaning and whether a resume may change it. Reading, checking,
// printing, comparing, help, man page and completion use the row.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

/// The allowed values of a number.
struct Range {
  double low = 0, high = 0;                  ///< bounds of a number
  bool low_open = false, high_open = false;  ///< the bound itself is excluded
  bool or_zero = false;                      ///< 0 is allowed, too: "off", "automatic"
  const char* word = nullptr;                ///< also allowed: a word that means word_value
  double word_value = 0;                     ///< the number that a word stands for; NaN: the default

  /// [low, high].
  static constexpr Range from(double low, double high) { return {.low = low, .high = high}; }
  /// (low, high].
  static constexpr Range above(double low, double high) {
    return {.low = low, .high = high, .low_open = true};
  }
  /// [low, high).
  static constexpr Range below(double low, double high) {
    return {.low = low, .high = high, .high_open = true};
  }

  bool contains(double value) const;  ///< whether a value is allowed
  /// "[0, 1)", "0 or [1, 1000000000]", "auto or (0, 1e+38]"
  std::string text() const;
};

/// Counts of steps, samples and the like.
inline constexpr Range counts = Range::from(0, 1e15);

/// Traits that few options have.
struct OptionTraits {
  const char* unit = "";                ///< such as "s" or "MiB"; empty: none
  bool required = false;                ///< the default is no value
  bool may_change = false;              ///< a resumed run may have another value
  bool keeps_weights = false;           ///< a model option: it does not change what given weights compute
  std::vector<std::string> peers = {};  ///< its names in other programs, for "did you mean"
};

/// What an option is, whatever the type of its section.
struct OptionText {
  std::string name;     ///< "bucket_mb"
  std::string kind;     ///< "number", "whole number", "numbers", "true or false", "word", "text", "texts"
  std::string allowed;  ///< "[0, 1)", "auto, cpu, cuda"; empty: anything
  std::string meaning;  ///< A few words for --help-keys
  OptionTraits traits;  ///< whether it is required, may change on a resume, has a unit
  std::vector<std::string> words;  ///< the allowed words of a "word" option

  /// "whole number in [1, 1000000]; steps"
  std::string form() const;
};

/// A row of a section.
template <class Section>
struct Option : OptionText {
  /// UsageError with what is wrong about the value.
  std::function<void(Section&, const std::string& value)> set;
  std::function<std::string(const Section&)> get;  ///< the value as text
};

/// How options of a section do not fit each other: what its check() throws, "min_lr" and why. The caller, who
/// knows the section and the source of its values, adds these.
class Misfit : public UsageError {
 public:
  /// The option as its row names it.
  Misfit(std::string option, const std::string& why)
      : UsageError("{}: {}", option, why), option_(std::move(option)), why_(why) {}
  const std::string& option() const { return option_; }  ///< as its row names it
  const std::string& why() const { return why_; }        ///< without the name

 private:
  std::string option_, why_;
};

/// A line of an INI file that is neither empty nor a comment. The texts are parts of the whole text.
struct IniLine {
  /// "[section]", "key = value", or what is wrong.
  enum class Kind { section, key, neither };

  Kind kind = Kind::neither;      ///< what it is
  int number = 0;                 ///< from 1
  std::string_view section = {};  ///< the section of the line; empty before the first section
  std::string_view key = {};      ///< of Kind::neither: the whole line
  std::string_view value = {};    ///< as written, with any quotes

  /// SECTION.KEY, or KEY before the first section.
  std::string name() const;
};
/// '#' begins a comment, except within the quotes of a value (option::unquoted()).
std::vector<IniLine> ini_lines(std::string_view text);

namespace option {

/// Removes the quotes of a value, single or double: "a b.h5", '#1.h5'. In double quotes \" \\ \n \t \r and
/// \xHH are escapes as in C. UsageError if a quote is not closed or if text follows it.
std::string unquoted(const std::string& value);
/// The words of a list. Each may be quoted.
std::vector<std::string> words_of(const std::string& values);
/// The inverse of unquoted(), for a line of an INI file: adds double quotes if the text has blanks at an end,
/// '#', quotes or unprintable characters. In a list, a text with a blank is quoted, too.
std::string printed(const std::string& text, bool in_list = false);

void read(const std::string& text, const Range& range, double& value);
void read(const std::string& text, const Range& range, int& value);
void read(const std::string& text, const Range& range, std::int64_t& value);
void read(const std::string& text, const Range& range, std::uint64_t& value);
bool read_flag(const std::string& text);
/// UsageError unless the text is one of the words; names the nearest.
void check_word(const std::string& text, const std::vector<std::string>& words);
std::string print(double value, const Range& range);
std::string print(std::int64_t value, const Range& range);
std::string print(std::uint64_t value, const Range& range);
std::string joined(const std::vector<std::string>& parts, std::string_view separator);

// An enum has words if constexpr auto words(Enum), next to it, returns an array of them in the order of the
// members.

/// The word of a member.
template <class Enum>
std::string word(Enum member) {
  const auto all = words(member);
  const auto at = static_cast<std::size_t>(member);
  return at < all.size() ? all[at] : std::to_string(at);
}
/// The member that this word names. UsageError if no member has it.
template <class Enum>
Enum named(const std::string& text) {
  const auto all = words(Enum{});
  check_word(text, {all.begin(), all.end()});
  std::size_t at = 0;
  while (text != all[at]) ++at;
  return static_cast<Enum>(at);
}

/// All values of a type, as float64 represents them.
template <class Number>
constexpr Range range_of() {
  return Range::from(static_cast<double>(std::numeric_limits<Number>::lowest()),
                     static_cast<double>(std::numeric_limits<Number>::max()));
}

template <class Section, class Number>
Option<Section> number(std::string name, Number Section::*field, Range range, std::string meaning,
                       OptionTraits traits = {}) {
  using Printed = std::conditional_t<std::is_same_v<Number, int>, std::int64_t, Number>;
  return {
      {std::move(name), std::is_floating_point_v<Number> ? "number" : "whole number", range.text(),
       std::move(meaning), std::move(traits),
       range.word ? std::vector<std::string>{range.word} : std::vector<std::string>{}},
      [field, range](Section& section, const std::string& value) {
        const std::string text = unquoted(value);
        if (range.word && std::isnan(range.word_value) && text == range.word)
          section.*field = Section{}.*field;
        else
          read(text, range, section.*field);
      },
      [field, range](const Section& section) { return print(static_cast<Printed>(section.*field), range); }};
}

/// A list of numbers, each in the range. A vector takes any number of them, an array exactly its size.
template <class Section, class Numbers>
Option<Section> numbers(std::string name, Numbers Section::*field, Range range, std::string meaning,
                        OptionTraits traits = {}) {
  return {{std::move(name), "numbers", range.text(), std::move(meaning), std::move(traits), {}},
          [field, range](Section& section, const std::string& value) {
            const std::vector<std::string> parts = words_of(value);
            Numbers found{};
            if constexpr (requires { found.resize(parts.size()); })
              found.resize(parts.size());
            else if (found.size() != parts.size())
              throw UsageError("takes {} numbers", found.size());
            for (std::size_t i = 0; i < parts.size(); ++i) read(parts[i], range, found[i]);
            section.*field = std::move(found);
          },
          [field, range](const Section& section) {
            std::vector<std::string> parts;
            for (const auto value : section.*field) parts.push_back(print(value, range));
            return joined(parts, " ");
          }};
}

template <class Section>
Option<Section> flag(std::string name, bool Section::*field, std::string meaning, OptionTraits traits = {}) {
  return {
      {std::move(name),
       "true or false",
       "true, false",
       std::move(meaning),
       std::move(traits),
       {"true", "false"}},
      [field](Section& section, const std::string& value) { section.*field = read_flag(unquoted(value)); },
      [field](const Section& section) -> std::string { return section.*field ? "true" : "false"; }};
}

/// One of a few words, or the default text.
template <class Section>
Option<Section> choice(std::string name, std::string Section::*field, std::vector<std::string> words,
                       std::string meaning, OptionTraits traits = {}) {
  return {{std::move(name), "word", joined(words, ", "), std::move(meaning), std::move(traits), words},
          [field, words](Section& section, const std::string& value) {
            const std::string word = unquoted(value);
            if (word != Section{}.*field) check_word(word, words);
            section.*field = word;
          },
          [field](const Section& section) { return printed(section.*field); }};
}

/// One of a few values that have words.
template <class Section, class Value>
requires(!std::is_same_v<Value, std::string>) Option<Section> choice(
    std::string name, Value Section::*field, std::vector<std::pair<std::string, Value>> values,
    std::string meaning, OptionTraits traits = {}) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) words.push_back(word);
  return {{std::move(name), "word", joined(words, ", "), std::move(meaning), std::move(traits), words},
          [field, values, words](Section& section, const std::string& text) {
            const std::string input = unquoted(text);
            check_word(input, words);
            for (const auto& [word, value] : values)
              if (word == input) section.*field = value;
          },
          [field, values](const Section& section) -> std::string {
            for (const auto& [word, value] : values)
              if (value == section.*field) return word;
            if constexpr (requires { to_string(section.*field); })
              return std::string(to_string(section.*field));
            return "?";
          }};
}
/// A member of an enum that has words.
template <class Section, class Enum>
requires std::is_enum_v<Enum> Option<Section> choice(std::string name, Enum Section::*field,
                                                     std::string meaning, OptionTraits traits = {}) {
  std::vector<std::pair<std::string, Enum>> values;
  for (const char* const word : words(Enum{})) values.emplace_back(word, named<Enum>(word));
  return choice(std::move(name), field, std::move(values), std::move(meaning), std::move(traits));
}

template <class Section>
Option<Section> text(std::string name, std::string Section::*field, std::string meaning,
                     OptionTraits traits = {}, std::string allowed = {}) {
  return {{std::move(name), "text", std::move(allowed), std::move(meaning), std::move(traits), {}},
          [field](Section& section, const std::string& value) { section.*field = unquoted(value); },
          [field](const Section& section) { return printed(section.*field); }};
}

/// A list of texts, with blanks between them.
template <class Section>
Option<Section> texts(std::string name, std::vector<std::string> Section::*field, std::string meaning,
                      OptionTraits traits = {}) {
  return {{std::move(name), "texts", {}, std::move(meaning), std::move(traits), {}},
          [field](Section& section, const std::string& value) { section.*field = words_of(value); },
          [field](const Section& section) {
            std::vector<std::string> parts;
            for (const std::string& part : section.*field) parts.push_back(printed(part, true));
            return joined(parts, " ");
          }};
}

/// A row for a member of any of the types above, without a range.
template <class Section, class Value>
Option<Section> member(std::string name, Value Section::*field, std::string meaning) {
  if constexpr (std::is_same_v<Value, bool>) {
    return flag(std::move(name), field, std::move(meaning));
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return text(std::move(name), field, std::move(meaning));
  } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
    return texts(std::move(name), field, std::move(meaning));
  } else if constexpr (std::is_enum_v<Value>) {
    return choice(std::move(name), field, std::move(meaning));
  } else {
    Option<Section> row;
    if constexpr (std::is_arithmetic_v<Value>)
      row = number(std::move(name), field, range_of<Value>(), std::move(meaning));
    else
      row = numbers(std::move(name), field, range_of<typename Value::value_type>(), std::move(meaning));
    row.allowed.clear();  // any number
    return row;
  }
}

/// The same row, where an empty value means the default.
template <class Section>
Option<Section> or_default(Option<Section> row) {
  row.set = [set = std::move(row.set), initial = row.get(Section{})](Section& section,
                                                                     const std::string& value) {
    set(section, unquoted(value).empty() ? initial : value);
  };
  return row;
}

/// A row of a section that is a part of `Whole`: access(whole) returns the section.
template <class Whole, class Section, class Access>
Option<Whole> within(Option<Section> row, Access access) {
  return {std::move(static_cast<OptionText&>(row)),
          [access, set = std::move(row.set)](Whole& whole, const std::string& value) {
            set(access(whole), value);
          },
          [access, get = std::move(row.get)](const Whole& whole) { return get(access(whole)); }};
}

/// All rows of the section that access(whole) returns.
template <class Whole, class Section, class Access>
std::vector<Option<Whole>> within(std::vector<Option<Section>> rows, Access access) {
  std::vector<Option<Whole>> found;
  for (Option<Section>& row : rows) found.push_back(within<Whole>(std::move(row), access));
  return found;
}

/// UsageError, naming the option after `prefix`, if a required option has no value or its row does not allow
/// its value.
template <class Section>
void check_rows(const Section& section, const std::vector<Option<Section>>& rows, const std::string& prefix) {
  const Section defaults;
  Section read_again;
  for (const Option<Section>& row : rows) {
    const std::string name = prefix + row.name, value = row.get(section);
    if (value == row.get(defaults)) {
      if (row.traits.required) throw UsageError("{} is missing: {}", name, row.meaning);
      continue;
    }
    try {
      row.set(read_again, value);
    } catch (const UsageError& error) {
      throw UsageError("{}: {}", name, error.what());
    }
  }
}
/// The same for all rows; also if options do not fit each other (Section::check(), if it has one).
template <class Section>
void check(const Section& section, const std::string& prefix) {
  check_rows(section, Section::options(), prefix);
  if constexpr (requires { section.check(); }) {
    try {
      section.check();
    } catch (const Misfit& error) {
      throw UsageError("{}{}", prefix, error.what());
    }
  }
}

}  // namespace option
}  // namespace lockstep

/// In a struct named Options: describes its members, each with its meaning, as the keys of a section.
///
///     struct Options {
///       std::int64_t width = 64;
///       bool residual = true;
///       LOCKSTEP_KEYS(width, "channels of the hidden layers", residual, "adds the input to the output")
///     };
///
/// At most 27 members. For ranges, units and required keys write options() with the rows of option.h instead.
#define LOCKSTEP_KEYS(...)                                    \
  static std::vector<::lockstep::Option<Options>> options() { \
    return {LOCKSTEP_EXPAND(LOCKSTEP_ROWS(__VA_ARGS__))};     \
  }
// A macro may not name itself: each expansion of LOCKSTEP_EXPAND's argument unfolds one more row.
#define LOCKSTEP_ROWS(field, meaning, ...)                     \
  ::lockstep::option::member(#field, &Options::field, meaning) \
      __VA_OPT__(, LOCKSTEP_MORE_ROWS LOCKSTEP_PARENTHESES(__VA_ARGS__))
#define LOCKSTEP_MORE_ROWS() LOCKSTEP_ROWS
#define LOCKSTEP_PARENTHESES ()
#define LOCKSTEP_EXPAND(...) LOCKSTEP_EXPAND_9(LOCKSTEP_EXPAND_9(LOCKSTEP_EXPAND_9(__VA_ARGS__)))
#define LOCKSTEP_EXPAND_9(...) LOCKSTEP_EXPAND_3(LOCKSTEP_EXPAND_3(LOCKSTEP_EXPAND_3(__VA_ARGS__)))
#define LOCKSTEP_EXPAND_3(...) __VA_ARGS__
