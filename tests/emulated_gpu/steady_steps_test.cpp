// A steady step asks the driver for no memory, and brings nothing from the CPU but its batch.
#include <boost/test/unit_test.hpp>

#include "comm/nccl.h"
#include "emulated_gpu/runtime.h"
#include "support/ranks.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(steady_steps_test, *ranks(1))

using emulated_gpu::counts, emulated_gpu::faults;

const std::string unet =
    "name = unet\nimage_size = 2\nin_channels = 1\nout_channels = 1\nmodel_channels = 32\n"
    "num_res_blocks = 1\nchannel_mult = 1\nnum_classes = 5\ndropout = 0.3\n"
    "[diffusion]\nschedule = cosine\nclass_dropout = 0.1\n";

/// more: copies of a step besides those of its shards.
void check_steady(const std::string& model, int more) {
  constexpr std::int64_t warm = 5, steps = 4;
  for (const ddp::Graph graph : {ddp::Graph::automatic, ddp::Graph::never}) {
    const emulated_gpu::WithFaults end;
    Place place(kernels::make_cuda_backend(0));
    place.transport = comm::make_nccl_transport(world(), {.stream = place.backend->stream()});
    train::Config config = device_config(model);
    config.ddp.graph = graph;
    DeviceRun run(config, place);
    run.run_to(warm);
    faults().good_allocations = 0;
    counts().uploads = 0;
    run.run_to(warm + steps);
    BOOST_TEST(counts().uploads == steps * (2 * config.ddp.shards + more), model);  // x and y
    BOOST_TEST((run.replicas().captured_steps().launches > 0) == (graph == ddp::Graph::automatic));
  }
}

BOOST_AUTO_TEST_CASE(classification) { check_steady(mlp, 0); }
BOOST_AUTO_TEST_CASE(text_with_dropout) { check_steady(gpt, 0); }
BOOST_AUTO_TEST_CASE(images) { check_steady(resnet, 0); }
BOOST_AUTO_TEST_CASE(diffusion) { check_steady(unet + "steps = 9\n", 0); }
/// The probabilities of the times, and the weights of their losses, until they stay the same.
BOOST_AUTO_TEST_CASE(diffusion_by_loss) { check_steady(unet + "steps = 2\ntime = loss_second_moment\n", 2); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace lockstep::test
