// Names of parameters and keys: prefixes of wrappers, patterns, the nearest known name, quotes for errors.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Strips any stack of "module." and "_orig_mod." from the front, never from inside.
std::string_view strip_wrapper_prefix(std::string_view name);

/// Shell-style match of a whole name: '*' is any run of characters (dots too), '?' is one.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// The candidate with the smallest edit distance, or empty if none is near (more than a third of the letters
/// off).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// A name from outside for an error text: in quotes, on one line, at most 120 bytes of it. Valid UTF-8 stays
/// as it is; quotes, backslashes and line ends are escaped as in C, other control characters and bytes that
/// are none are written \xNN.
std::string in_quotes(std::string_view name);

}  // namespace lockstep
