// Steady state: once shapes have been seen, a training pass of the diffusion task takes no memory from the
// system (see tests/models/steady_state.cpp).
#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/models/unet.h"
#include "lockstep/tasks/diffusion.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(diffusion_steady_state)

BOOST_AUTO_TEST_CASE(passes_after_the_third_allocate_nothing) {
  using namespace lockstep::tasks;
  const Batch batch(0, {{"x", Tensor::zeros({4, 1, 8, 8})}, {"y", Tensor::zeros({4}, DType::int64)}});
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const Diffusion::Options& options :
         {Diffusion::Options{.predict = Predict::v, .min_snr = 5},
          Diffusion::Options{.variance = Variance::learned_range, .class_dropout = 0.5},
          Diffusion::Options{.steps = 21, .variance = Variance::learned_range, .loss = Objective::kl}}) {
      models::Unet unet({.image_size = 8,
                         .in_channels = 1,
                         .model_channels = 32,
                         .out_channels = options.variance == Variance::learned_range ? 2 : 1,
                         .num_res_blocks = 1,
                         .channel_mult = {1},
                         .num_classes = 10},
                        1);
      Diffusion task(options);
      const auto backend = kernels::make_cpu_backend();
      LocalGradients gradients(unet, *backend);
      Tape tape(*backend);
      constexpr int warm = 8, steps = 16;  // step 0 of the schedule, which needs more, comes before
      BOOST_TEST_CONTEXT(option::word(options.variance)
                         << ", " << option::word(options.loss) << ", " << to_string(compute)) {
        const Allocations made = steady_allocations(*backend, warm, steps, [&](std::uint64_t step) {
          gradients.clear();
          tape.begin({.seed = 1, .step = step, .sink = &gradients, .compute = compute});
          backward(task(tape, unet, batch));
          tape.finish_backward();
        });
        BOOST_TEST(made.own == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
