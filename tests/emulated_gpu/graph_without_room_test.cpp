// A graph whose memory the device does not have leaves steps as they are, or is an error where it was asked
// for.
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "comm/nccl.h"
#include "emulated_gpu/runtime.h"
#include "lockstep/base/error.h"
#include "support/ranks.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(graph_without_room_test, *ranks(1))

constexpr std::int64_t steps = 8;

Place on_gpu() {
  Place place(kernels::make_cuda_backend(0));
  place.transport = comm::make_nccl_transport(world(), {.stream = place.backend->stream()});
  return place;
}

train::Config config_with(ddp::Graph graph) {
  train::Config config = device_config(mlp);
  config.ddp.graph = graph;
  return config;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct NoRoom {
  NoRoom() { emulated_gpu::faults().launches = cudaErrorMemoryAllocation; }
  ~NoRoom() { emulated_gpu::faults().launches = cudaSuccess; }
};

BOOST_AUTO_TEST_CASE(steps_are_plain_and_have_their_bits) {
  const NoRoom fault;
  Place gpu = on_gpu();
  DeviceRun found(config_with(ddp::Graph::automatic), gpu), wanted(config_with(ddp::Graph::never), gpu);
  found.run_to(steps);
  wanted.run_to(steps);
  BOOST_TEST(found.losses() == wanted.losses(), boost::test_tools::per_element());
  const auto a = found.values(), b = wanted.values();
  for (std::size_t i = 0; i < b.size(); ++i)
    BOOST_TEST(std::memcmp(a[i].second.raw(), b[i].second.raw(), b[i].second.bytes()) == 0, a[i].first);
  BOOST_TEST(says(found.replicas().captured_steps().refused, "cudaGraphLaunch"));
  BOOST_TEST(found.replicas().captured_steps().launches == 0);
}

BOOST_AUTO_TEST_CASE(it_is_an_error_where_a_graph_was_asked_for) {
  const NoRoom fault;
  Place gpu = on_gpu();
  DeviceRun run(config_with(ddp::Graph::always), gpu);
  BOOST_CHECK_EXCEPTION(run.run_to(steps), UsageError, [](const UsageError& error) {
    return says(error.what(), "train.cuda_graph = true") && says(error.what(), "cudaGraphLaunch");
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
