#include "train/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/lines.h"
#include "base/text.h"
#include "lockstep/base/option.h"

namespace lockstep::train {

ConfigText::ConfigText(const std::string& text, std::string origin, Lines lines)
    : origin_(std::move(origin)), lines_(lines) {
  const std::string protected_text = option::protect_quotes(text);
  for (const IniLine& line : ini_lines(protected_text)) {
    if (line.kind == IniLine::Kind::neither)
      throw UsageError("{}: not an INI file of [section] and key = value lines: this line is neither: {}",
                       place(line.number), shown(std::string(line.key)));
    if (line.kind == IniLine::Kind::section)
      sections_.push_back({.name = std::string(line.section), .line = line.number});
    else
      keys_.push_back({.name = line.name(), .value = std::string(line.value), .line = line.number});
  }
  for (auto key = keys_.begin(); key != keys_.end(); ++key)
    if (std::find_if(keys_.begin(), key, [&](const Key& other) { return other.name == key->name; }) != key)
      throw UsageError("{}: {}: is given twice", place_of(key->name), shown(key->name));
}

std::string ConfigText::place(int line) const {
  return lines_ == Lines::told && line > 0 ? fmt::format("{}:{}", origin_, line) : origin_;
}

std::string ConfigText::place_of(std::string_view key) const {
  const auto last =
      std::find_if(keys_.rbegin(), keys_.rend(), [&](const Key& one) { return one.name == key; });
  return last == keys_.rend() ? origin_ : place(last->line);
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
