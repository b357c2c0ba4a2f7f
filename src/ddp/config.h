// The section `ddp` of a configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::ddp {

struct DdpConfig {
  double bucket_mb = 25, first_bucket_mb = 1;
  std::string unused = "error", reduce_dtype = "fp32";
  bool sharded_optimizer = false;
  std::int64_t check_every = 0;
  std::string mode = "overlapped";

  static std::vector<Option<DdpConfig>> options();
};

}  // namespace lockstep::ddp
