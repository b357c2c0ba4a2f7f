// Texts: lines; names of parameters and keys (wrapper prefixes, patterns, the nearest known name); quoting,
// lists and plurals for messages.
#pragma once

#include <fmt/core.h>
#include <charconv>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace lockstep {

/// The text without leading and trailing blanks and line ends.
std::string_view without_blanks(std::string_view text);

/// The lines of a text without their ends, as views of it. Text after the last end is a line if it is not
/// empty.
std::vector<std::string_view> lines_of(std::string_view text);

/// Strips any stack of "module." and "_orig_mod." from the front, never from inside.
std::string_view strip_wrapper_prefix(std::string_view name);

/// Shell-style match of a whole name: '*' is any run of characters (dots too), '?' is one.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// The candidate with the smallest edit distance, ignoring case. Empty if none is near (a third of the
/// letters at most), or if the name is longer than 200 bytes.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// With small letters for A to Z.
std::string lower_case(std::string_view text);

/// True if every character is printable and the text is valid UTF-8.
bool is_printable(std::string_view text);

/// The text in printable characters on one line: quotes, backslashes and line ends are escaped as in C; other
/// control characters, invalid UTF-8 and the letters of `also` as \xNN.
std::string escaped(std::string_view text, std::string_view also = {});

/// The text for a terminal: characters that are not printable are written \n or \xNN.
std::string on_one_line(std::string_view text);

/// A name for an error text: in quotes, escaped like escaped(), at most 120 bytes of it.
std::string quote(std::string_view name);

/// One word of a shell's command line: in single quotes, unless it needs none.
std::string shell_quoted(std::string_view text);

/// The text, or of a longer one its first bytes and how many it has: "abc ... (1234 bytes)".
std::string beginning_of(std::string_view text, std::size_t max_bytes);

/// The first texts: "a, b ... and 9 more".
std::string list_of(std::span<const std::string> texts, std::size_t max_texts = 8,
                    std::string_view separator = ", ");

/// A number for a line of text: with 4 decimals, or with 4 digits if its magnitude is below 0.01.
std::string figure(double value);

/// Parses the whole text as a number, in a base if given. If the text is invalid, returns false and leaves
/// `number` unchanged.
template <class Number>
bool parse_number(std::string_view text, Number& number, auto... base) {
  const char* const end = text.data() + text.size();
  Number parsed{};
  const auto [stop, error] = std::from_chars(text.data(), end, parsed, base...);
  if (error != std::errc() || stop != end) return false;
  number = parsed;
  return true;
}

/// "1 tensor", "2 tensors".
std::string pluralized(std::integral auto count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace lockstep
