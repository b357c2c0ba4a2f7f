#include "train/room_options.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/gpus.h"
#include "train/precision.h"

namespace lockstep::train {

DType wire_of(const Config& config) {
  if (config.ddp.reduce_dtype == "bf16") return DType::bfloat16;
  return config.ddp.reduce_dtype == "fp16" ? DType::float16 : DType::float32;
}

data::Augment augment_of(const Config& config, const data::Dataset& dataset) {
  if (!config.data.crop && !config.data.flip) return {};
  const Shape image = dataset.x_shape();
  const int padding = image.rank() == 3 ? static_cast<int>(std::max<std::int64_t>(1, image[2] / 8)) : 1;
  return {.crop_padding = config.data.crop ? padding : 0, .flip = config.data.flip};
}

ddp::Options ddp_options(const Config& config, DType compute) {
  return {.bucket_mb = config.ddp.bucket_mb,
          .first_bucket_mb = config.ddp.first_bucket_mb,
          .shards = config.train.shards,
          .micro_batches = config.train.micro_batches,
          .unused = ddp::unused_named(config.ddp.unused),
          .mode = ddp::mode_named(config.ddp.mode),
          .comm_dtype = wire_of(config),
          .sharded_optimizer = config.ddp.sharded_optimizer,
          .check_every = config.ddp.check_every,
          .seed = config.train.seed,
          .compute = compute,
          .layer_communicator = config.model.batch_norm == "sync",
          .graph = ddp::graph_named(config.train.cuda_graph)};
}

checkpoint::StoreOptions store_options(const Config& config, const DataSets& data,
                                       const kernels::Backend& backend, DType compute) {
  const data::Dataset& dataset = data.train();
  checkpoint::Provenance facts{{samples_fact, std::to_string(dataset.size())},
                               {"device", kernels::name_of(backend.device())},
                               {"threads", std::to_string(backend.threads())},
                               {"instruction_set", backend.instruction_set()},
                               {"precision", precision_text(compute, backend)}};
  if (const std::string tokenizer = data.tokenizer(); !tokenizer.empty()) facts[tokenizer_fact] = tokenizer;
  return {.schedule = {.seed = config.train.seed,
                       .shards = config.train.shards,
                       .samples_per_step = config.train.global_batch,
                       .samples_per_epoch = dataset.size()},
          .config = to_text(config),
          .provenance = std::move(facts),
          .keep = config.checkpoint.keep,
          .keep_best = config.checkpoint.keep_best,
          .async = config.checkpoint.async,
          .strict = config.checkpoint.load == "strict",
          .narrow = config.checkpoint.narrow};
}

}  // namespace lockstep::train
