// What train.precision comes to on the machines at hand.
#pragma once

#include <span>
#include <string>

#include "lockstep/train/session.h"

namespace lockstep::train {

/// What one rank's device says of bf16.
struct RankPrecision {
  std::string why_slow;  ///< kernels::Backend::why_slow_in_bf16()
  std::string host;
};

struct PrecisionChoice {
  DType compute = DType::float32;
  std::string remark;  ///< to be said once; empty if there is nothing to say
};

/// asked: "fp32" or "bf16". Where bf16 would be slower than float32 on some rank, `fallback` decides for all:
/// "refuse" (UsageError saying where and why), "fp32", or "convert" (the same computation in software).
PrecisionChoice choose_precision(const std::string& asked, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank);

/// The choice for the session's device; its remark is said. Collective; errors are the same on every rank.
DType settle_precision(Session& session, const std::string& asked, const std::string& fallback);

/// What a run records of it: "fp32", "bf16", or "bf16 by conversion" where the device is no faster in it.
std::string precision_text(DType compute, const kernels::Backend& backend);

}  // namespace lockstep::train
