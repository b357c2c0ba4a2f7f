// The sections `optimizer` and `ema` of a configuration.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::optim {

/// optimizer.group.N
struct GroupConfig {
  std::string pattern;
  double lr_factor = 1, decay_factor = 1;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3, min_lr = 0;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  std::string decay;  ///< "matrices" or "all"; empty: by algorithm
  static constexpr double momentum_by_algorithm = -1;
  double momentum = momentum_by_algorithm;
  std::string nesterov;           ///< "true" or "false"; empty: by algorithm
  std::vector<std::string> muon;  ///< name patterns of what Muon takes; none: by the parameters' roles
  double clip = 0;                ///< 0: off
  std::string schedule = "constant";
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;          ///< of the schedule wsd
  std::vector<std::int64_t> milestones;  ///< of the schedule step
  double gamma = 0.1;                    ///< of the schedule step
  double power = 1;                      ///< of the schedule poly
  std::map<int, GroupConfig> groups;

  /// All but the groups, whose names have a number.
  static std::vector<Option<OptimizerConfig>> options();
};

struct EmaConfig {
  std::vector<double> rates;
  std::vector<double> warmup;  ///< none, or inv_gamma, power, update_after
  std::vector<double> sigma_rel;
  std::string buffers = "copy";

  static std::vector<Option<EmaConfig>> options();
};

}  // namespace lockstep::optim
