// Histograms of a model's parameters and gradients.
#pragma once

#include <cstdint>

#include "lockstep/autograd/gradient_sink.h"
#include "report/event.h"

namespace lockstep::train {

/// "parameters/NAME" of every parameter; "gradients/NAME" of the mean gradient (sum / count) of every one
/// that has a gradient of the step that was made last. Whole on rank 0 at any number of ranks, the same bits;
/// empty elsewhere. Collective where the source has a Partition: its gradients are gathered one by one.
report::Event histograms_of(GradientSource& source, std::int64_t step, bool on_rank_0);

}  // namespace lockstep::train
