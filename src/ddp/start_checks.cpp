#include "ddp/start_checks.h"

#include <set>
#include <utility>

#include "kernels/transfer.h"
#include "lockstep/base/error.h"

namespace lockstep::ddp {

void check_options(const Options& options, int ranks) {
  if (options.wire != DType::float32 && options.wire != DType::bfloat16 && options.wire != DType::float16)
    throw UsageError("gradients cannot travel as {}; use float32, bfloat16 or float16",
                     to_string(options.wire));
  if (!(options.bucket_mb > 0) || !(options.first_bucket_mb > 0))
    throw UsageError("ddp.bucket_mb = {} and ddp.first_bucket_mb = {} must be above 0", options.bucket_mb,
                     options.first_bucket_mb);
  if (options.micro_batches < 1)
    throw UsageError("train.micro_batches = {} must be at least 1", options.micro_batches);
  if (options.check_every < 0)
    throw UsageError("ddp.check_every = {} must not be negative", options.check_every);
  if (options.shards < 0) throw UsageError("train.shards = {} must not be negative", options.shards);
  if (options.shards != 0 && options.shards < ranks)
    throw UsageError("{} ranks but only {} shards: start at most {} ranks, or start a run with more shards",
                     ranks, options.shards, options.shards);
}

std::vector<Param*> trainable_params(const std::vector<Param*>& params) {
  std::vector<Param*> trainable;
  std::set<std::string> names;
  for (Param* const param : params) {
    if (!names.insert(param->name).second) throw UsageError("two parameters are named {}", param->name);
    if (param->value.dtype() != DType::float32)
      throw UsageError("parameter {} is {}; parameters are float32", param->name,
                       to_string(param->value.dtype()));
    if (param->trainable) trainable.push_back(param);
  }
  if (trainable.empty())
    throw UsageError("the model has no trainable parameter, so there is nothing to train in parallel");
  return trainable;
}

ModelState without_repeats(ModelState model) {
  std::set<const Param*> seen;
  std::erase_if(model.params, [&](const Param* param) { return !seen.insert(param).second; });
  return model;
}

void check_device(const std::string& name, const Tensor& value, const kernels::Backend& backend) {
  if (value.device() == backend.device()) return;
  throw UsageError("{} lies on {}, but gradients are computed on {}; move the model there first: model.to()",
                   name, to_string(value.device()), to_string(backend.device()));
}

void broadcast_values(comm::Communicator& communicator, const ModelState& model, kernels::Backend& backend) {
  if (communicator.size() == 1) return;
  const auto broadcast = [&](const Tensor& value) {
    const Tensor here = kernels::on_cpu(value, &backend);
    communicator.broadcast(here.raw(), here.bytes(), 0);
    kernels::transfer(here, value, &backend);
  };
  for (const Param* const param : model.params) broadcast(param->value);
  for (const Buffer* const buffer : model.buffers) broadcast(buffer->value);
}

}  // namespace lockstep::ddp
