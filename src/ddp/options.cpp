#include "lockstep/ddp/options.h"

#include "lockstep/base/error.h"

namespace lockstep::ddp {

std::vector<Option<Options>> Options::options() {
  using namespace option;
  using O = Options;
  const Range size = Range::above(0, 1e6);
  return {
      number("bucket_mb", &O::bucket_mb, size,
             "size at which a gradient bucket closes; the last buckets are smaller",
             {.unit = "MiB",
              .may_change = true,
              .peers = {"bucket_cap_mb", "bucket_size", "reduce_bucket_size"}}),
      number("first_bucket_mb", &O::first_bucket_mb, size, "size at which the first gradient bucket closes",
             {.unit = "MiB", .may_change = true}),
      number("shards_at_once", &O::shards_at_once, {.low = 1, .high = 1e6, .word = "auto", .word_value = 0},
             "shards that one pass computes; auto: as many as a GPU's memory allows",
             {.unit = "shards", .may_change = true}),
      choice("unused", &O::unused, "treatment of parameters that no sample used",
             {.peers = {"find_unused_parameters"}}),
      choice("reduce_dtype", &O::comm_dtype,
             {{"fp32", DType::float32}, {"bf16", DType::bfloat16}, {"fp16", DType::float16}},
             "communication dtype of gradients between nodes, and between GPUs"),
      flag("sharded_optimizer", &O::sharded_optimizer,
           "each rank updates a partition of the parameters and keeps optimizer state and EMA weights of it "
           "only",
           {.may_change = true, .peers = {"zero", "zero_stage", "use_distributed_optimizer"}}),
      number("check_every", &O::check_every, counts,
             "steps between comparisons of all ranks' parameters; 0: never compare",
             {.unit = "steps", .may_change = true}),
      choice("mode", &O::mode, "when gradients are summed; flat and per_parameter are for measurements",
             {.may_change = true}),
  };
}

std::vector<Option<Options>> Options::options_of_run() {
  using namespace option;
  using O = Options;
  return {
      number("shards", &O::shards, Range::from(0, 1e6),
             "number of equal parts of the batch, at least as many as ranks; 0: the number of ranks of the "
             "first start"),
      number("micro_batches", &O::micro_batches, Range::from(1, 1e6),
             "number of parts of a shard that are computed one after the other, to save memory",
             {.peers = {"gradient_accumulation_steps", "grad_accum", "grad_accumulation",
                        "accumulate_grad_batches", "accumulation_steps", "micro_batch_size"}}),
      number("seed", &O::seed, Range::from(0, 18446744073709551615.0), "seed of every random draw",
             {.peers = {"random_seed", "manual_seed"}}),
      choice("cuda_graph", &O::graph,
             "capture the step as a CUDA graph; auto: on one GPU, where it can be captured",
             {.may_change = true, .peers = {"cuda_graphs", "compile"}}),
  };
}

void Options::check(int ranks) const {
  option::check_rows(*this, options_of_run(), "train.");
  option::check_rows(*this, options(), "ddp.");
  if (shards != 0 && shards < ranks)
    throw UsageError("{} ranks but only {} shards: start at most {} ranks, or start a run with more shards",
                     ranks, shards, shards);
}

}  // namespace lockstep::ddp
