// A GPU that fails in the middle of a run, in each of the ways and at each of the moments that it can: the
// run ends with an error that names what failed, and what it held is given back.
#include <boost/test/unit_test.hpp>
#include <string>
#include <tuple>

#include "comm/nccl.h"
#include "emulated_gpu/runtime.h"
#include "lockstep/base/error.h"
#include "support/ranks.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(failures_test, *ranks(1))

using emulated_gpu::faults;

struct WithFaults {
  WithFaults() = default;
  ~WithFaults() { faults() = {}; }
  WithFaults(const WithFaults&) = delete;
  WithFaults& operator=(const WithFaults&) = delete;
};

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr const char* small_gpt =
    "name = gpt\nlayers = 1\nheads = 2\nchannels = 16\ncontext = 8\nvocab = 64\n";

/// Four steps, of which the last is captured. What ended them; empty if nothing did.
std::string end_of_run(const std::string& model, const std::string& precision) {
  try {
    train::Config config = device_config(model);
    config.train.precision = precision;
    Place gpu(kernels::make_cuda_backend(0));
    gpu.transport = comm::make_nccl_transport(world(), {.stream = gpu.backend->stream()});
    DeviceRun run(config, gpu);
    run.run_to(4);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// fails(number): sets the fault; each number until a run is not touched by it. `step`: numbers from one to
/// the next.
template <class Fault, class Check>
int each_moment(const std::string& model, const std::string& precision, int step, const Fault& fault,
                const Check& check) {
  for (int number = 0;; number += step) {
    const WithFaults end;
    fault(number);
    const std::string what = end_of_run(model, precision);
    if (what.empty()) return number;
    BOOST_TEST_CONTEXT(model << " in " << precision << ", number " << number << ": " << what) { check(what); }
  }
}

BOOST_AUTO_TEST_CASE(an_allocation_that_fails_ends_the_run_and_little_is_kept) {
  for (const auto& [model, precision, step] :
       {std::tuple{std::string(mlp), "fp32", 1}, {small_gpt, "bf16", 5}}) {
    std::size_t before = emulated_gpu::pieces_in_use();
    const int numbers = each_moment(
        model, precision, step, [](int number) { faults().good_allocations = number; },
        [&](const std::string& what) {
          BOOST_TEST((says(what, "out of memory") || says(what, "bytes left")));
          // A flat buffer stays: peers may still send what its streams wait for.
          BOOST_TEST(emulated_gpu::pieces_in_use() <= before + 1);
          before = emulated_gpu::pieces_in_use();
        });
    BOOST_TEST(numbers > 20);
  }
}

BOOST_AUTO_TEST_CASE(a_kernel_that_breaks_the_device_ends_the_run_by_name) {
  for (const auto& [model, precision, step] :
       {std::tuple{std::string(mlp), "fp32", 3}, {small_gpt, "bf16", 17}}) {
    const int numbers = each_moment(
        model, precision, step, [](int number) { faults().good_launches = number; },
        [](const std::string& what) {
          BOOST_TEST((says(what, "illegal memory access") || says(what, "EXECUTION_FAILED")));
          BOOST_TEST(says(what, "cuda:0"));
        });
    BOOST_TEST(numbers > 50);
  }
}

BOOST_AUTO_TEST_CASE(products_without_fused_kernels_are_made_by_separate_ones) {
  const auto losses = [](bool fused) {
    const WithFaults end;
    faults().fused_products = fused;
    train::Config config = device_config(small_gpt);
    config.train.precision = "bf16";
    Place gpu(kernels::make_cuda_backend(0));
    gpu.transport = comm::make_nccl_transport(world(), {.stream = gpu.backend->stream()});
    DeviceRun run(config, gpu);
    run.run_to(4);
    return run.losses();
  };
  BOOST_TEST(losses(false) == losses(true), boost::test_tools::tolerance(2e-2)
                                                << boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
