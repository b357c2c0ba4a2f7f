#include "train/golden_train.h"

#include "support/world.h"

BOOST_AUTO_TEST_CASE(trajectories_are_those_of_pytorch) {
  const auto backend = lockstep::kernels::make_cpu_backend();
  lockstep::test::train_all_cases(lockstep::test::world(), *backend);
}

BOOST_AUTO_TEST_CASE(in_bf16_trajectories_stay_near) {
  const auto backend = lockstep::kernels::make_cpu_backend();
  lockstep::test::train_all_cases(lockstep::test::world(), *backend, lockstep::DType::bfloat16);
}
