// Texts: names of parameters and keys (wrapper prefixes, patterns, the nearest known name), quoting and
// plurals for messages.
#pragma once

#include <fmt/core.h>
#include <concepts>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Strips any stack of "module." and "_orig_mod." from the front, never from inside.
std::string_view strip_wrapper_prefix(std::string_view name);

/// Shell-style match of a whole name: '*' is any run of characters (dots too), '?' is one.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// The candidate with the smallest edit distance, or empty if none is near (more than a third of the letters
/// off, or longer than any name of ours).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// True if every character is printable and the text is valid UTF-8.
bool is_printable(std::string_view text);

/// The text in printable characters on one line: quotes, backslashes and line ends are escaped as in C, other
/// control characters, bytes that are no UTF-8 and letters of `also` are written \xNN.
std::string escaped(std::string_view text, std::string_view also = {});

/// A text of ours that may hold names from outside, for a terminal: what is not printable is written \n or
/// \xNN, all else stays.
std::string on_one_line(std::string_view text);

/// A name from outside for an error text: in quotes, on one line, at most 120 bytes of it. Valid UTF-8 stays
/// as it is; quotes, backslashes and line ends are escaped as in C, other control characters and bytes that
/// are not are written \xNN.
std::string quote(std::string_view name);

/// "1 tensor", "2 tensors".
std::string pluralized(std::integral auto count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace lockstep
