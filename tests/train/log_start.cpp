// What a run logs at its start about the order of its sums, which its bits depend on.
#include "train/run/log_start.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(log_start)

/// Two ranks, as far as notes go.
class Two final : public Forwarding {
 public:
  Two(comm::CpuCommunicator& world, bool rounds) : Forwarding(world), rounds_(rounds) {}
  int size() const override { return 2; }
  bool rounds(DType wire) const override { return rounds_ && wire != DType::float32; }

 private:
  bool rounds_;
};

std::string notes(const Device& device, bool rounds, bool reproducible, DType comm_dtype) {
  const auto world = comm::make_self_communicator();
  Two transport(*world, rounds);
  train::Config config;
  config.train.reproducible = reproducible;
  config.ddp.comm_dtype = comm_dtype;
  std::string all;
  for (const std::string& note : train::notes_on_sums(config, transport, device)) all += note + "\n";
  return all;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const Device gpu = Device::cuda(0), cpu = Device::cpu();

BOOST_AUTO_TEST_CASE(sums_in_the_order_of_nccl_are_said_with_the_way_out) {
  BOOST_TEST(has(notes(gpu, true, false, DType::float32), "depends on the number of ranks"));
  BOOST_TEST(has(notes(gpu, true, false, DType::float32), "train.reproducible = true"));
  BOOST_TEST(notes(gpu, true, true, DType::float32) == "");
  BOOST_TEST(notes(cpu, true, false, DType::float32) == "");
}

BOOST_AUTO_TEST_CASE(narrow_gradients_are_said_to_have_no_effect_only_where_they_have_none) {
  BOOST_TEST(has(notes(gpu, true, true, DType::float16), "at the same number of ranks only"));
  BOOST_TEST(has(notes(cpu, true, true, DType::float16), "on the same nodes only"));
  BOOST_TEST(has(notes(cpu, false, true, DType::float16), "no effect"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
