#include "ddp/config.h"

namespace lockstep::ddp {

std::vector<Option<DdpConfig>> DdpConfig::options() {
  using namespace option;
  using D = DdpConfig;
  const Range size = Range::above(0, 1e6);
  return {
      number("bucket_mb", &D::bucket_mb, size,
             "size at which a gradient bucket closes; they taper at the end",
             {.unit = "MiB",
              .may_change = true,
              .peers = {"bucket_cap_mb", "bucket_size", "reduce_bucket_size"}}),
      number("first_bucket_mb", &D::first_bucket_mb, size, "the same for the first one",
             {.unit = "MiB", .may_change = true}),
      choice("unused", &D::unused, {"error", "allow"}, "parameters that no sample used",
             {.peers = {"find_unused_parameters"}}),
      choice("reduce_dtype", &D::reduce_dtype, {"fp32", "bf16", "fp16"},
             "of gradients that travel: between machines, and between GPUs"),
      flag("sharded_optimizer", &D::sharded_optimizer,
           "each rank updates a part of the parameters, and keeps optimizer state and averages of it only",
           {.may_change = true, .peers = {"zero", "zero_stage", "use_distributed_optimizer"}}),
      number("check_every", &D::check_every, counts, "between comparisons of all ranks' parameters; 0: never",
             {.unit = "steps", .may_change = true}),
      choice("mode", &D::mode, {"overlapped", "flat", "per_parameter"},
             "how gradients travel; flat and per_parameter are to compare with", {.may_change = true}),
  };
}

}  // namespace lockstep::ddp
