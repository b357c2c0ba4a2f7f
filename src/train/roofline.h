// The roofline of a standard workload: what one step moves, computes and launches on a GPU, on any machine.
#pragma once

#include <string>
#include <vector>

#include "kernels/roofline.h"
#include "train/benchmark.h"

namespace lockstep::train {

/// Sums over operations, as kernels::RooflineFigures has them.
struct RooflineTotals {
  std::int64_t launches = 0;
  double bytes = 0;
  double flops = 0;
  double ms = 0;

  /// The sum of both.
  RooflineTotals operator+(const RooflineTotals& other) const {
    return {launches + other.launches, bytes + other.bytes, flops + other.flops, ms + other.ms};
  }
};

/// What one step takes on a GPU at least, operation by operation.
struct StepRoofline {
  std::vector<kernels::RooflineFigures> operations;  ///< of one step, the longest first

  /// Of one kind of operations.
  RooflineTotals total(kernels::RooflineFigures::Kind kind) const;
  RooflineTotals total() const;  ///< of all
};

/// A step of one rank with its whole batch, in steady state, as `src/kernels/cuda` carries its operations
/// out. compute: the type of the passes. `overrides`, as for WorkloadRun. Nothing is computed: only
/// parameters have memory, on the CPU.
StepRoofline roofline_of(const StandardWorkload& workload, DType compute,
                         const std::vector<std::string>& overrides = {});

}  // namespace lockstep::train
