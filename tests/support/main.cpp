// The main of a test program that runs alone.
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_MODULE lockstep
#include <boost/test/unit_test.hpp>
