// What a text must say; for BOOST_CHECK_EXCEPTION, the text of an error.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::test {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// True if an error's text holds all of these and is one line.
inline auto mentions(std::vector<std::string> texts) {
  return [texts = std::move(texts)](const std::exception& error) {
    const std::string what = error.what();
    const bool all =
        std::ranges::all_of(texts, [&](const std::string& text) { return contains(what, text); });
    if (!all || contains(what, "\n")) BOOST_TEST_MESSAGE("the text was: " << what);
    return all && !contains(what, "\n");
  };
}
template <class... Texts>
auto mentions(const Texts&... texts) {
  static_assert(sizeof...(texts) > 0, "what is to be mentioned?");
  return mentions(std::vector<std::string>{texts...});
}

}  // namespace lockstep::test
