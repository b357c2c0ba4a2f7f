// A GPU that fails in the middle of a run, in each of the ways and at each of the moments that it can: the
// run ends with an error that names what failed, and what it held is given back.
#include <boost/test/unit_test.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "comm/nccl.h"
#include "emulated_gpu/runtime.h"
#include "lockstep/base/error.h"
#include "support/ranks.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(failures_test, *ranks(1))

using emulated_gpu::faults;
using emulated_gpu::WithFaults;

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr const char* small_gpt =
    "name = gpt\nlayers = 1\nheads = 2\nchannels = 16\ncontext = 8\nvocab = 64\n";

/// A run of eight steps, most of them captured ones.
std::vector<double> losses_of(const std::string& model, const std::string& precision) {
  train::Config config = device_config(model);
  config.train.precision = precision;
  config.ddp.graph = ddp::Graph::automatic;
  Place gpu(kernels::make_cuda_backend(0));
  gpu.transport = comm::make_nccl_transport(world(), {.stream = gpu.backend->stream()});
  DeviceRun run(config, gpu);
  run.run_to(8);
  const bool untouched =
      faults().broken == cudaSuccess && (faults().good_allocations >= 0 || faults().good_launches >= 0);
  BOOST_TEST((!untouched || run.replicas().captured_steps().launches > 0));
  return run.losses();
}

/// fault(left) sets the fault, which comes once `left` is below 0: each `step`th number until it does not
/// come. check(error) of a run that it ended; a capture that lacks memory goes on as plain steps. Returns how
/// many runs it ended.
template <class Check>
int each_moment(const std::string& model, const std::string& precision, int step,
                int emulated_gpu::Faults::*left, const Check& check) {
  int ended = 0;
  for (int number = 0;; number += step) {
    const WithFaults end;
    faults().*left = number;
    try {
      losses_of(model, precision);
    } catch (const Error& error) {
      ++ended;
      BOOST_TEST_CONTEXT(model << " in " << precision << ", number " << number << ": " << error.what()) {
        check(std::string(error.what()));
      }
    }
    if (faults().*left >= 0) return ended;
  }
}

BOOST_AUTO_TEST_CASE(an_allocation_that_fails_ends_the_run_and_little_is_kept) {
  for (const auto& [model, precision, step] :
       {std::tuple{std::string(mlp), "fp32", 3}, {small_gpt, "bf16", 11}}) {
    const std::size_t before = emulated_gpu::pieces_in_use();
    const int ended = each_moment(model, precision, step, &emulated_gpu::Faults::good_allocations,
                                  [](const std::string& what) {
                                    BOOST_TEST((says(what, "out of memory") || says(what, "bytes left")));
                                  });
    BOOST_TEST(ended > 8);  // at others, memory that was kept for later is given back
    // Of each at most the flat buffer: peers may still send what its streams wait for.
    BOOST_TEST(emulated_gpu::pieces_in_use() <= before + static_cast<std::size_t>(ended));
  }
}

BOOST_AUTO_TEST_CASE(a_kernel_that_breaks_the_device_ends_the_run_by_name) {
  for (const auto& [model, precision, step] :
       {std::tuple{std::string(mlp), "fp32", 7}, {small_gpt, "bf16", 17}}) {
    const int ended = each_moment(
        model, precision, step, &emulated_gpu::Faults::good_launches, [](const std::string& what) {
          BOOST_TEST((says(what, "illegal memory access") || says(what, "EXECUTION_FAILED")));
          BOOST_TEST(says(what, "cuda:0"));
        });
    BOOST_TEST(ended > 20);
  }
}

BOOST_AUTO_TEST_CASE(products_without_fused_kernels_are_made_by_separate_ones) {
  const std::vector<double> wanted = losses_of(small_gpt, "bf16");
  const WithFaults end;
  faults().fused_products = false;
  BOOST_TEST(losses_of(small_gpt, "bf16") == wanted, boost::test_tools::tolerance(2e-2)
                                                         << boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
