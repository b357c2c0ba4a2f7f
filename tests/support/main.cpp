// The main of a test program that runs alone.
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_NO_MAIN
#include <boost/test/unit_test.hpp>

#include "support/selection.h"

int main(int argc, char** argv) {
  return boost::unit_test::unit_test_main(
      [] {
        lockstep::test::keep_cases_of(0);
        return true;
      },
      argc, argv);
}
