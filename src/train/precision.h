// The precision that a run computes in: train.precision, as far as the devices of its ranks are fast in it.
#pragma once

#include <span>
#include <string>

#include "lockstep/train/session.h"

namespace lockstep::train {

/// bf16 on the device of one rank.
struct RankPrecision {
  std::string why_slow;  ///< kernels::Backend::why_slow_in_bf16()
  std::string host;
};

struct PrecisionChoice {
  DType compute = DType::float32;
  std::string remark;  ///< to be logged once; may be empty
};

/// asked: "fp32" or "bf16". Where bf16 would be slower than float32 on some rank, `fallback` decides for all:
/// "refuse" (UsageError saying where and why), "fp32", or "convert" (the same computation in software).
PrecisionChoice choose_precision(const std::string& asked, const std::string& fallback,
                                 std::span<const RankPrecision> of_rank);

/// The choice for the session's device; its remark is logged. Collective; errors are the same on every rank.
DType settle_precision(Session& session, const std::string& asked, const std::string& fallback);

/// As checkpoints store it: "fp32", "bf16", or "bf16 by conversion" where the device is no faster in it.
std::string precision_text(DType compute, const kernels::Backend& backend);

}  // namespace lockstep::train
