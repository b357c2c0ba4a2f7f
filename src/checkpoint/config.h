// The section `checkpoint` of a configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::checkpoint {

struct CheckpointConfig {
  /// `every`: found out by the trainer from how long steps take.
  static constexpr std::int64_t auto_every = -1;

  std::int64_t every = auto_every;  ///< steps; 0: only at the end
  int keep = 2;
  std::string keep_best;
  bool async = false;
  std::string load = "strict";
  bool narrow = false;

  static std::vector<Option<CheckpointConfig>> options();
};

}  // namespace lockstep::checkpoint
