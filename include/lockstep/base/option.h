// Options that describe themselves: a section of a configuration is a struct, and each of its options a row
// that says its name, what it may be, its unit, what it means and whether a resumed run may change it.
// Reading, checking, printing, comparing, help, man page and completion come from the row.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// What a number may be.
struct Range {
  double low = 0, high = 0;
  bool low_open = false, high_open = false;  ///< the bound itself is not in it
  bool or_zero = false;                      ///< 0 besides: "off", "as it comes"
  const char* word = nullptr;                ///< also allowed: a word that means word_value
  double word_value = 0;

  static constexpr Range from(double low, double high) { return {.low = low, .high = high}; }
  static constexpr Range above(double low, double high) {
    return {.low = low, .high = high, .low_open = true};
  }
  static constexpr Range below(double low, double high) {
    return {.low = low, .high = high, .high_open = true};
  }

  bool contains(double value) const;
  /// "[0, 1)", "0 or [1, 1e+09]", "auto or [0, 1e+15]"
  std::string text() const;
};

/// Counts of steps, samples and the like.
inline constexpr Range counts = Range::from(0, 1e15);

/// What not every option has.
struct OptionTraits {
  const char* unit = "";
  bool may_change = false;              ///< when a run is resumed
  std::vector<std::string> peers = {};  ///< what other programs call it: "did you mean"
};

/// A row of a section.
template <class Section>
struct Option {
  std::string name;     ///< "bucket_mb"
  std::string kind;     ///< "number", "whole number", "numbers", "true or false", "word", "text", "texts"
  std::string allowed;  ///< "[0, 1)", "auto, cpu, cuda"; empty: anything
  std::string meaning;
  OptionTraits traits;
  std::vector<std::string> words;  ///< of a word: those it may be
  /// UsageError with what is wrong about the value.
  std::function<void(Section&, const std::string& value)> set;
  std::function<std::string(const Section&)> get;
};

namespace option {

/// A value may stand in quotes, single or double: "a b.h5", '#1.h5'. In double ones \" \\ \n \t \r and \xHH
/// are what they are in C. UsageError if a quote is not closed or is followed by more.
std::string unquoted(const std::string& value);
/// The words of a list, each of which may stand in quotes.
std::vector<std::string> words_of(const std::string& values);
/// The text as unquoted() takes it, and as a line of an INI file holds it: as it is, or in double quotes
/// where it would not come back (blanks at an end, '#', quotes, what cannot be printed). In a list a blank
/// wants quotes, too.
std::string printed(const std::string& text, bool in_list = false);

/// An INI file's text in which '#' within quotes is no comment to a reader that knows none.
std::string protect_quotes(const std::string& ini);

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

template <class Section, class Number>
Option<Section> number(std::string name, Number Section::*field, Range range, std::string meaning,
                       OptionTraits traits = {}) {
  using Printed = std::conditional_t<std::is_same_v<Number, int>, std::int64_t, Number>;
  return {.name = std::move(name),
          .kind = std::is_floating_point_v<Number> ? "number" : "whole number",
          .allowed = range.text(),
          .meaning = std::move(meaning),
          .traits = std::move(traits),
          .words = range.word ? std::vector<std::string>{range.word} : std::vector<std::string>{},
          .set = [field, range](Section& section,
                                const std::string& value) { read(unquoted(value), range, section.*field); },
          .get = [field, range](
                     const Section& section) { return print(static_cast<Printed>(section.*field), range); }};
}

/// A list of numbers, each in the range.
template <class Section, class Number>
Option<Section> numbers(std::string name, std::vector<Number> Section::*field, Range range,
                        std::string meaning, OptionTraits traits = {}) {
  return {.name = std::move(name),
          .kind = "numbers",
          .allowed = range.text(),
          .meaning = std::move(meaning),
          .traits = std::move(traits),
          .words = {},
          .set =
              [field, range](Section& section, const std::string& value) {
                std::vector<Number> read_values;
                for (const std::string& word : words_of(value)) read(word, range, read_values.emplace_back());
                section.*field = std::move(read_values);
              },
          .get =
              [field, range](const Section& section) {
                std::vector<std::string> parts;
                for (const Number value : section.*field) parts.push_back(print(value, range));
                return joined(parts, " ");
              }};
}

template <class Section>
Option<Section> flag(std::string name, bool Section::*field, std::string meaning, OptionTraits traits = {}) {
  return {
      .name = std::move(name),
      .kind = "true or false",
      .allowed = "true, false",
      .meaning = std::move(meaning),
      .traits = std::move(traits),
      .words = {"true", "false"},
      .set = [field](Section& section,
                     const std::string& value) { section.*field = read_flag(unquoted(value)); },
      .get = [field](const Section& section) -> std::string { return section.*field ? "true" : "false"; }};
}

/// One of a few words, or what it is by default.
template <class Section>
Option<Section> choice(std::string name, std::string Section::*field, std::vector<std::string> words,
                       std::string meaning, OptionTraits traits = {}) {
  return {.name = std::move(name),
          .kind = "word",
          .allowed = joined(words, ", "),
          .meaning = std::move(meaning),
          .traits = std::move(traits),
          .words = words,
          .set =
              [field, words](Section& section, const std::string& value) {
                const std::string word = unquoted(value);
                if (word != Section{}.*field) check_word(word, words);
                section.*field = word;
              },
          .get = [field](const Section& section) { return printed(section.*field); }};
}

template <class Section>
Option<Section> text(std::string name, std::string Section::*field, std::string meaning,
                     OptionTraits traits = {}, std::string allowed = {}) {
  return {.name = std::move(name),
          .kind = "text",
          .allowed = std::move(allowed),
          .meaning = std::move(meaning),
          .traits = std::move(traits),
          .words = {},
          .set = [field](Section& section, const std::string& value) { section.*field = unquoted(value); },
          .get = [field](const Section& section) { return printed(section.*field); }};
}

/// A list of texts, with blanks between them.
template <class Section>
Option<Section> texts(std::string name, std::vector<std::string> Section::*field, std::string meaning,
                      OptionTraits traits = {}) {
  return {.name = std::move(name),
          .kind = "texts",
          .allowed = {},
          .meaning = std::move(meaning),
          .traits = std::move(traits),
          .words = {},
          .set = [field](Section& section, const std::string& value) { section.*field = words_of(value); },
          .get =
              [field](const Section& section) {
                std::vector<std::string> parts;
                for (const std::string& part : section.*field) parts.push_back(printed(part, true));
                return joined(parts, " ");
              }};
}

}  // namespace option
}  // namespace lockstep
