#include "train/golden_train.h"

#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_train, *golden() * ranks(1, 2, 4))

BOOST_AUTO_TEST_CASE(trajectories_are_those_of_pytorch) {
  const auto backend = kernels::make_cpu_backend();
  train_all_cases(world(), *backend);
}

BOOST_AUTO_TEST_CASE(in_bf16_trajectories_stay_near) {
  const auto backend = kernels::make_cpu_backend();
  train_all_cases(world(), *backend, DType::bfloat16);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
