// Random changes of a batch that is read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/augment.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Those of with_indices(), then y_partner and y_share if the changes mix samples. UsageError if the data set
/// has no images x, float32 [C, H, W], to change, or no labels y to mix.
std::vector<Field> batch_fields(const Dataset& dataset, const Augment& augment);

/// Changes a shard in place. batch: of batch_fields(); samples: their numbers, by place; scratch: C H W
/// floats.
void augment_batch(const Augment& augment, const Moment& moment, std::span<const std::int64_t> samples,
                   const Batch& batch, std::span<float> scratch);

}  // namespace lockstep::data
