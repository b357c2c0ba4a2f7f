// Passes that compute several shards, on a GPU: plain, and as graphs.
#include "comm/nccl/on_gpu.h"
#include "kernels/gpus.h"
#include "support/ranks.h"
#include "train/shards_at_once.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shards_at_once, *ranks(1, 2))

Place on_gpu() {
  Place place(kernels::make_cuda_backend(own_gpu()));
  place.transport = comm::make_nccl_transport(
      world(), {.device = own_gpu(), .stream = place.backend->stream(), .reproducible = true});
  return place;
}

BOOST_AUTO_TEST_CASE(every_task_has_the_bits_of_single_shards) {
  for (const AtOnceCase& what : at_once_cases())
    for (const char* const precision : {"fp32", "bf16"})
      check_at_once(on_gpu, what, precision,
                    std::strcmp(precision, "bf16") == 0 ? std::vector{2, 8} : std::vector{4});
}

BOOST_AUTO_TEST_CASE(graphs_of_several_shards_have_the_bits_of_single_shards) {
  for (const AtOnceCase& what : at_once_cases()) check_at_once(on_gpu, what, "bf16", {8}, ddp::Graph::always);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
