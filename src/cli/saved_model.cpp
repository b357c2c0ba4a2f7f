#include "cli/saved_model.h"

#include "lockstep/checkpoint/load.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/train/workload.h"

namespace lockstep::cli {

SavedModel::SavedModel(const std::string& file, const std::string& weights, Session& session) {
  if (weights != "model" && !weights.starts_with("ema/")) {
    throw UsageError("--weights {}: is neither model nor ema/RATE", weights);
  }
  const checkpoint::FileIndex index = checkpoint::read_index(file, session.world());
  if (index.config.empty())
    throw UsageError("{}: stores no configuration, so its model cannot be built", file);
  comm::together(session.world(), [&] {
    config_ = train::parse_config(index.config, file + " /config");
    model_ = train::build_model(config_);
  });
  session.use_backend(Device::cpu(), config_.train.threads);
  const checkpoint::LoadReport report = checkpoint::load_weights(file, *model_, session.world(), weights);
  for (const std::string& warning : report.warnings) session.log().info("{}", warning);
  step_ = index.position.step;
}

}  // namespace lockstep::cli
