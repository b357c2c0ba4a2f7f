// How a run's own configuration and the one asked for come together.
#pragma once

#include <cstdint>

#include "lockstep/checkpoint/run_directory.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/trainer.h"

namespace lockstep::train {

/// Settles train.shards (the run's, or the world size), train.threads (the run's, or 0), train.steps (where
/// train.epochs is asked for: the run's, if it was of as many, else what `samples` samples take),
/// checkpoint.every (the run's, if auto is asked for) and train.init (--resume FILE, which is said where the
/// configuration names another, or the run's), and checks that the run directory holds the same run or none.
/// What changes of a run that is there is said. Collective. UsageError on every rank if the directory holds
/// another configuration (each differing key with both values), if steps and epochs are asked for that are
/// not the run's, and as check_shards().
void settle(Config& config, checkpoint::RunDirectory& run, const RunOptions& options, std::int64_t samples,
            const comm::HostGroup& world);

/// After it: train.threads = 0 in a new run becomes what choose_threads() says, which is said, and the
/// session's backend, if it is the CPU's, gets the run's threads, bound where binding_wanted(). Collective.
void settle_threads(Config& config, Session& session);

}  // namespace lockstep::train
