// The optimizers that a configuration names, and its sections `optimizer` and `ema`. A new optimizer is one
// line of the table in registry.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The keys of [optimizer].
struct OptimizerConfig {
  std::string name = "adamw";             ///< which one
  double lr = 1e-3, min_lr = 0;           ///< greatest and least learning rate
  std::vector<double> betas{0.9, 0.999};  ///< decay of the two moments
  /// Added to the root of the second moment; decoupled from the gradient.
  double eps = 1e-8, weight_decay = 0;
  std::string decay;                                   ///< "matrices" or "all"; empty: by algorithm
  static constexpr double momentum_by_algorithm = -1;  ///< momentum is that of the algorithm
  double momentum = momentum_by_algorithm;             ///< of sgd and muon
  std::string nesterov;                                ///< "true" or "false"; empty: by algorithm
  std::vector<std::string> muon;         ///< name patterns of what Muon takes; none: by the parameters' roles
  double clip = 0;                       ///< 0: off
  std::string schedule = "constant";     ///< of the learning rate
  std::int64_t warmup_steps = 0;         ///< over which the rate grows from 0
  std::int64_t decay_steps = 0;          ///< of the schedule wsd
  std::vector<std::int64_t> milestones;  ///< of the schedule step
  double gamma = 0.1;                    ///< of the schedule step
  double power = 1;                      ///< of the schedule poly
  std::map<int, ParamGroup> groups;      ///< optimizer.group.N

  /// All but the groups, whose names have a number.
  static std::vector<Option<OptimizerConfig>> options();
};

/// The keys of [ema].
struct EmaConfig {
  std::vector<double> rates;      ///< constant decays
  std::vector<double> warmup;     ///< none, or inv_gamma, power, update_after
  std::vector<double> sigma_rel;  ///< widths of power-function EMAs
  std::string buffers = "copy";   ///< copy, average or leave
  std::string init = "weights";   ///< where those of a new run from a file begin: weights or file

  static std::vector<Option<EmaConfig>> options();  ///< the members, as keys of a configuration
};

/// Names that `optimizer.name` may have.
std::vector<std::string> optimizer_names();

/// Fills in what depends on the algorithm and is not given (decay, momentum, nesterov).
void complete(OptimizerConfig& config);

/// What the algorithm needs said of a model before ddp::DataParallel divides it among ranks.
void prepare_model(const OptimizerConfig& config, const ModelState& model);

/// Of a complete configuration. `source` must outlive it. UsageError as the optimizers' constructors throw
/// it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, GradientSource& source);

/// Float32 elements that it keeps of a model's parameters, all ranks together.
std::int64_t elements_of_state(const OptimizerConfig& config, const ModelState& model);

}  // namespace lockstep::optim
