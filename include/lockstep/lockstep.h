// All of Lockstep's public interface.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/loss.h"
#include "lockstep/autograd/recompute.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/cli/app.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/text.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/ddp/collectives.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/models/gpt.h"
#include "lockstep/models/mlp.h"
#include "lockstep/models/registry.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/series.h"
#include "lockstep/models/unet.h"
#include "lockstep/models/vit.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tasks/built_in.h"
#include "lockstep/tasks/diffusion.h"
#include "lockstep/tasks/generative.h"
#include "lockstep/tasks/registry.h"
#include "lockstep/tasks/task.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/session.h"
#include "lockstep/train/stop.h"
#include "lockstep/train/time_limit.h"

// What most programs name.
namespace lockstep {

using checkpoint::Store;
using data::Arrays;
using data::Dataset;
using data::DistributedSampler;
using data::Field;
using data::Images;
using data::Loader;
using data::Text;
using data::Tokenizer;
using ddp::DataParallel;
using nn::convert_sync_batch_norm;
using nn::freeze_statistics;
using optim::AdamW;
using optim::Ema;
using optim::Lion;
using optim::Muon;
using optim::Sgd;
using train::MetricsFile;
using train::Progress;
using train::StopRequests;
using train::TimeLimit;

}  // namespace lockstep
