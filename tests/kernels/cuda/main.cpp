// The main of a test program that needs a GPU. Without one it says why and ends with 77, which CTest reports
// as skipped: never as passed.
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_NO_MAIN
#include <boost/test/unit_test.hpp>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"

int main(int argc, char** argv) {
  try {
    lockstep::kernels::make_cuda_backend(0);
  } catch (const lockstep::UsageError& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  } catch (const lockstep::Error& error) {
    std::printf("the GPU is there, but %s\n", error.what());
    return 1;
  }
  return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
