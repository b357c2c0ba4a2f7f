// For BOOST_CHECK_EXCEPTION: what the text of an error must say.
#pragma once

#include <boost/test/unit_test.hpp>
#include <exception>
#include <string>

namespace lockstep::test {

/// True if an error's text holds all of these and is one line.
template <class... Texts>
auto mentions(Texts... texts) {
  return [=](const std::exception& error) {
    const std::string what = error.what();
    const bool all = ((what.find(texts) != std::string::npos) && ...) && what.find('\n') == std::string::npos;
    if (!all) BOOST_TEST_MESSAGE("the text was: " << what);
    return all;
  };
}

}  // namespace lockstep::test
