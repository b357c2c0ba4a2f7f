// A library that is looked for late: what is there is found, and what is not is named.
#include "base/dynamic_library.h"

#include <boost/test/unit_test.hpp>

#include "lockstep/base/error.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(late_library)

constexpr const char* remedy = "install it";

BOOST_AUTO_TEST_CASE(functions_are_called_by_pointer) {
  const DynamicLibrary math("libm.so.6", {}, remedy);
  double (*cosine)(double) = nullptr;
  math.find("cos", cosine);
  BOOST_TEST(cosine(0) == 1);
}

BOOST_AUTO_TEST_CASE(a_missing_library_is_named_with_the_reason_and_the_remedy) {
  BOOST_CHECK_EXCEPTION(DynamicLibrary("libnowhere.so.7", {"/nonexistent"}, remedy), UsageError,
                        mentions("libnowhere.so.7: cannot load the library: ", "No such file", remedy));
}

BOOST_AUTO_TEST_CASE(a_missing_function_is_named) {
  const DynamicLibrary math("libm.so.6", {}, remedy);
  void (*missing)() = nullptr;
  BOOST_CHECK_EXCEPTION(math.find("no_such_function", missing), UsageError,
                        mentions("libm.so.6: has no function no_such_function; install it"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
