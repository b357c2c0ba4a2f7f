// Private to the module: what a configuration means to the modules that carry it out.
#pragma once

#include "lockstep/checkpoint/store.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/options.h"
#include "lockstep/kernels/backend.h"
#include "train/config.h"
#include "train/workload.h"

namespace lockstep::train {

data::Augment augment_of(const Config& config, const data::Dataset& dataset);
/// ddp.reduce_dtype
DType wire_of(const Config& config);
ddp::Options ddp_options(const Config& config, DType compute);

/// A fact stored with a checkpoint and compared on a resume: how many samples there were to train on.
inline constexpr const char* samples_fact = "train_samples";

/// And by which tokenizer, of text.
inline constexpr const char* tokenizer_fact = "tokenizer";

checkpoint::StoreOptions store_options(const Config& config, const DataSets& data,
                                       const kernels::Backend& backend, DType compute);

}  // namespace lockstep::train
