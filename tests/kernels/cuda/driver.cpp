// The driver that cuDNN finds in a test without a GPU: it takes every kernel, so that plans are made to their
// end. Everything else fails, as with the toolkit's stub of it, whose names `driver_names.inc` has.
namespace {

constexpr int success = 0, stub_library = 34;  // CUresult
int thing = 0;                                 // what handles point to

}  // namespace

extern "C" {

int cuLibraryLoadData(void** library) {
  *library = &thing;
  return success;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = &thing;
  return success;
}
int cuLibraryUnload() { return success; }
int cuKernelSetAttribute() { return success; }

#define LOCKSTEP_FAILS(name) \
  int name() { return stub_library; }
#include "driver_names.inc"
}
