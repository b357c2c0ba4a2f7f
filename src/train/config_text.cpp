#include "train/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "lockstep/base/option.h"

namespace lockstep::train {
namespace {

namespace po = boost::program_options;

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace

ConfigText::ConfigText(const std::string& text, std::string origin, Lines lines)
    : origin_(std::move(origin)), lines_(lines) {
  find_places(text);
  try {
    std::istringstream stream(option::protect_quotes(text));
    const po::parsed_options parsed = po::parse_config_file(stream, po::options_description(), true);
    for (const po::option& line : parsed.options) {
      if (std::ranges::find(keys_, line.string_key, &Key::name) != keys_.end())
        throw UsageError("{}: {}: is given twice", place_of(line.string_key), shown(line.string_key));
      keys_.push_back({.name = line.string_key, .value = line.value.empty() ? "" : line.value.front()});
    }
  } catch (const po::invalid_config_file_syntax& error) {
    // Not what(): it never ends if the line contains %invalid_line%, the word that it replaces by the line.
    throw UsageError("{}: not an INI file of [section] and key = value lines: this line is neither: {}",
                     place(neither_), shown(error.tokens()));
  } catch (const po::error& error) {
    throw UsageError("{}: not an INI file of [section] and key = value lines: {}", origin_, error.what());
  }
}

/// As Program_options reads it, which does not tell lines.
void ConfigText::find_places(const std::string& text) {
  std::string prefix;
  std::istringstream lines(text);
  int number = 0;
  for (std::string whole; std::getline(lines, whole);) {
    ++number;
    const std::string_view line = without_blanks(std::string_view(whole).substr(0, whole.find('#')));
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    if (line.starts_with('[') && line.ends_with(']')) {
      sections_.push_back({.name = std::string(line.substr(1, line.size() - 2)), .line = number});
      prefix = sections_.back().name + ".";
    } else if (equals != line.npos) {
      places_.push_back(
          {.name = prefix + std::string(without_blanks(line.substr(0, equals))), .line = number});
    } else if (neither_ == 0) {
      neither_ = number;
    }
  }
}

std::string ConfigText::place(int line) const {
  return lines_ == Lines::told && line > 0 ? fmt::format("{}:{}", origin_, line) : origin_;
}

std::string ConfigText::place_of(std::string_view key) const {
  const auto last =
      std::find_if(places_.rbegin(), places_.rend(), [&](const Place& place) { return place.name == key; });
  return last == places_.rend() ? origin_ : place(last->line);
}

std::string shown(const std::string& name) {
  constexpr std::size_t longest_shown = 120;
  return name.size() <= longest_shown && is_printable(name) ? name : quote(name);
}

void Mistakes::throw_if_any() const {
  constexpr std::size_t most_named = 12;
  if (texts_.empty()) return;
  if (texts_.size() == 1) throw UsageError("{}", texts_.front());
  std::string all;
  for (std::size_t i = 0; i < std::min(texts_.size(), most_named); ++i)
    all += fmt::format(" ({}) {}", i + 1, texts_[i]);
  if (texts_.size() > most_named) all += fmt::format(" ... and {} more", texts_.size() - most_named);
  throw UsageError("{} mistakes:{}", texts_.size(), all);
}

}  // namespace lockstep::train
