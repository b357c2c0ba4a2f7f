#include "base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep {
namespace {

/// Bytes of the printable character that the text begins with; 0 if it does not begin with one. No overlong
/// forms, surrogates or numbers beyond Unicode: https://www.unicode.org/versions/Unicode15.0.0/ch03.pdf table
/// 3-7.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](std::size_t i, unsigned min = 0x80, unsigned max = 0xbf) {
    return at(i) >= min && at(i) <= max;
  };
  const unsigned first = at(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  // U+0080 to U+009F are control characters.
  if (first >= 0xc2 && first <= 0xdf) return continues(1, first == 0xc2 ? 0xa0 : 0x80) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    return continues(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && continues(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    return continues(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && continues(2) &&
                   continues(3)
               ? 4
               : 0;
  }
  return 0;
}

}  // namespace

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string_view strip_wrapper_prefix(std::string_view name) {
  for (bool stripped = true; stripped;) {
    stripped = false;
    for (const std::string_view prefix : {std::string_view("module."), std::string_view("_orig_mod.")}) {
      if (name.starts_with(prefix)) {
        name.remove_prefix(prefix.size());
        stripped = true;
      }
    }
  }
  return name;
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // Greedy matching that goes back to the last '*' only.
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return lower;
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string nearest;
  constexpr std::size_t longest_name = 200;
  if (name.size() > longest_name) return nearest;
  // Two edits turn any three letters into any others, so short names must be nearer.
  std::size_t best = (name.size() < 4 ? 1 : std::max<std::size_t>(2, name.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(lower_case(name), lower_case(candidate));
    if (distance < best) best = distance, nearest = candidate;
  }
  return nearest;
}

std::string list_of(std::span<const std::string> texts, std::size_t max_texts, std::string_view separator) {
  const std::span<const std::string> listed = texts.first(std::min(texts.size(), max_texts));
  const std::size_t rest = texts.size() - listed.size();
  return fmt::format("{}{}", fmt::join(listed, separator),
                     rest == 0 ? "" : fmt::format(" ... and {} more", rest));
}

std::string figure(double value) {
  return std::abs(value) >= 0.01 || value == 0 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

bool is_printable(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

namespace {

/// The first character, or the invalid byte, escaped; letters of `with_backslash` get a backslash.
std::string escaped_character(std::string_view text, std::size_t bytes, std::string_view with_backslash,
                              std::string_view also) {
  const char first = text[0];
  if (first == '\n') return "\\n";
  if (bytes == 0 || also.find(first) != also.npos)
    return fmt::format("\\x{:02x}", static_cast<unsigned char>(first));
  if (with_backslash.find(first) != with_backslash.npos) return {'\\', first};
  return std::string(text.substr(0, bytes));
}

std::string escape(std::string_view text, std::size_t max_bytes, std::string_view with_backslash,
                   std::string_view also, bool& cut) {
  std::string found;
  for (std::size_t done = 0; done < text.size();) {
    const std::size_t bytes = character_bytes(text.substr(done));
    if (done + std::max<std::size_t>(bytes, 1) > max_bytes) {
      cut = true;
      break;
    }
    found += escaped_character(text.substr(done), bytes, with_backslash, also);
    done += std::max<std::size_t>(bytes, 1);
  }
  return found;
}

constexpr std::size_t whole = std::string_view::npos;

}  // namespace

std::string escaped(std::string_view text, std::string_view also) {
  bool cut = false;
  return escape(text, whole, "\"\\", also, cut);
}

std::string on_one_line(std::string_view text) {
  bool cut = false;
  return escape(text, whole, "", "", cut);
}

std::string shell_quoted(std::string_view text) {
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.,=/";
  if (!text.empty() && text.find_first_not_of(plain) == std::string_view::npos) return std::string(text);
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

std::string beginning_of(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  return fmt::format("{} ... ({} bytes)", text.substr(0, max_bytes), text.size());
}

std::string quote(std::string_view name) {
  constexpr std::size_t max_bytes = 120;
  bool cut = false;
  const std::string text = escape(name, max_bytes, "\"\\", "", cut);
  return fmt::format("\"{}\"{}", text, cut ? "..." : "");
}

}  // namespace lockstep
