// cuDNN takes the graphs of attention, for GPUs that are described and not here: it finds an engine that
// gives the same bits every time, and compiles its kernel. Only the driver, a stub in this test, does not
// load it.
#include <array>
#include <boost/test/unit_test.hpp>
#include <string>

#include "kernels/cuda/attention.h"
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
    const std::int64_t batch = 16, queries = 1024, heads = 12, width = 64, channels = heads * width;
    BOOST_TEST_CONTEXT("version " << kind.version) {
      const auto check_problem = [&](std::int64_t keys, bool causal, const auto& strides_of) {
        const ops::AttentionSizes problem{batch, queries, keys, heads, heads, width, causal, 2};
        const ops::HeadStrides of_queries = strides_of(queries), of_keys = strides_of(keys);
        const AttentionStrides strides{.q = of_queries,
                                       .k = of_keys,
                                       .v = of_keys,
                                       .y = {queries * channels, width, channels},
                                       .dy = {queries * channels, width, channels},
                                       .dq = of_queries,
                                       .dk = of_keys,
                                       .dv = of_keys};
        check_taken(attention_graph(problem, strides), device, "forward");
        check_taken(attention_backward_graph(problem, strides), device, "backward");
      };
      check_problem(queries, true, [&](std::int64_t time) {
        return ops::HeadStrides{3 * time * channels, width, 3 * channels};
      });
      check_problem(512, false, [&](std::int64_t time) {
        return ops::HeadStrides{time * channels, time * width, width};
      });
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
