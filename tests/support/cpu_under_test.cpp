#include "support/backend_under_test.h"

namespace lockstep::test {

std::unique_ptr<kernels::Backend> make_backend_under_test() { return kernels::make_cpu_backend(); }

}  // namespace lockstep::test
