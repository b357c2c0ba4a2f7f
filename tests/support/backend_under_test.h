// What a test program computes with where it runs on the CPU or on a GPU: its build names one of
// cpu_under_test.cpp and gpu_under_test.cpp.
#pragma once

#include <memory>

#include "lockstep/kernels/backend.h"

namespace lockstep::test {

std::unique_ptr<kernels::Backend> make_backend_under_test();

}  // namespace lockstep::test
