// cuDNN takes the graphs of attention, for GPUs that are described and not here: it finds an engine that
// gives the same bits every time, and compiles its kernel. Only the driver, a stub in this test, does not
// load it.
#include <array>
#include <boost/test/unit_test.hpp>
#include <string>

#include "kernels/cuda/attention_plan.h"
#include "lockstep/ops/attention.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(graphs)

using namespace kernels;

/// As cuDNN writes a device's properties.
std::string description(int version, int multiprocessors, int shared_bytes) {
  return R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "l2CacheSize": 52428800, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "pciDeviceId": 0, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "isTccDriver": 0,
    "supportCoopLaunch": 1, "driverVer": 13000, "totalGlobalMem": 80000000000, "deviceName": "made up",
    "cudaDeviceId": 0, "deviceVer": )" +
         std::to_string(version) + R"(, "multiProcessorCount": )" + std::to_string(multiprocessors) +
         R"(, "maxSharedMemoryPerBlockOptin": )" + std::to_string(shared_bytes) + "}";
}

void check_taken(FusedGraph graph, const CudnnDescriptor& device, const char* what) {
  const bool built = graph.build(device);
  BOOST_TEST((built || graph.why().find("cuLibraryLoadData") != std::string::npos),
             what << ": " << graph.why());
}

BOOST_AUTO_TEST_CASE(the_libraries_that_it_was_built_for_are_found_and_have_every_function) {
  BOOST_CHECK_NO_THROW(load_cuda_libraries());
}

BOOST_AUTO_TEST_CASE(attention_of_every_kind_of_gpu_is_taken) {
  load_cuda_libraries();
  struct Kind {
    int version, multiprocessors, shared_bytes;
  };
  for (const Kind& kind : {Kind{800, 108, 166912}, Kind{900, 132, 232448}, Kind{1000, 148, 232448}}) {
    const CudnnDescriptor device =
        device_properties(description(kind.version, kind.multiprocessors, kind.shared_bytes));
    const ops::AttentionSizes problem{16, 1024, 12, 64, true, 2};
    BOOST_TEST_CONTEXT("version " << kind.version) {
      const std::int64_t channels = problem.heads * problem.width, side_by_side = 3 * channels;
      AttentionStrides strides{.q = side_by_side,
                               .k = side_by_side,
                               .v = side_by_side,
                               .y = channels,
                               .dy = channels,
                               .dq = side_by_side,
                               .dk = side_by_side,
                               .dv = side_by_side};
      check_taken(attention_graph(problem, strides), device, "forward");
      check_taken(attention_backward_graph(problem, strides), device, "backward");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
