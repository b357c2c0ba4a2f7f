// Unicode texts: where UTF-8 is valid, and normal forms (utf8proc).
#pragma once

#include <string>
#include <string_view>

namespace lockstep::data {

/// The number of bytes up to the first that is not UTF-8.
std::size_t valid_bytes(std::string_view text);

enum class NormalForm { none, nfc, nfkc };
/// Appends the normal form of valid UTF-8.
void append_normal(NormalForm form, std::string_view text, std::string& out);

}  // namespace lockstep::data
