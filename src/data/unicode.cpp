#include "data/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

}  // namespace

std::size_t valid_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    utf8proc_int32_t character = 0;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate(bytes_of(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    if (bytes <= 0) break;
    at += static_cast<std::size_t>(bytes);
  }
  return at;
}

void append_normal(NormalForm form, std::string_view text, std::string& out) {
  // Of NFC the characters below U+0300 are their own form, of NFKC those of ASCII, unless a mark follows.
  const unsigned char changes_from = form == NormalForm::nfc ? 0xCC : form == NormalForm::nfkc ? 0x80 : 0xFF;
  const auto may_change = [&](char c) { return static_cast<unsigned char>(c) >= changes_from; };
  const int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE | (form == NormalForm::nfkc ? UTF8PROC_COMPAT : 0);
  thread_local std::vector<utf8proc_int32_t> characters;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = std::ranges::find_if(text.substr(at), may_change);
    std::size_t begin = static_cast<std::size_t>(found - text.begin());
    // No character of ASCII changes together with one before it, so the form of a part from one on is known.
    if (begin < text.size()) {
      while (begin > at && !is_ascii(text[begin])) --begin;
    }
    out += text.substr(at, begin - at);
    if (begin == text.size()) break;
    const auto next = std::find_if(found, text.end(), is_ascii);
    const std::string_view part = text.substr(begin, static_cast<std::size_t>(next - text.begin()) - begin);
    const auto option = static_cast<utf8proc_option_t>(options);
    const auto decompose = [&] {
      return utf8proc_decompose(bytes_of(part), static_cast<utf8proc_ssize_t>(part.size()), characters.data(),
                                static_cast<utf8proc_ssize_t>(characters.size()), option);
    };
    utf8proc_ssize_t count = decompose();
    if (count >= std::ssize(characters)) {  // utf8proc_reencode() needs one more
      characters.resize(static_cast<std::size_t>(count) + 1);
      count = decompose();
    }
    const utf8proc_ssize_t bytes = count < 0 ? count : utf8proc_reencode(characters.data(), count, option);
    if (bytes < 0) throw DataError("cannot normalize a text: {}", utf8proc_errmsg(bytes));
    out.append(reinterpret_cast<const char*>(characters.data()), static_cast<std::size_t>(bytes));
    at = static_cast<std::size_t>(next - text.begin());
  }
}

}  // namespace lockstep::data
