#include "cli/saved_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/optim/ema.h"
#include "train/components.h"
#include "train/device.h"

namespace lockstep::cli {

std::string weights_group(const std::string& weights) {
  constexpr std::string_view ema = "ema/";
  if (weights == "model") return weights;
  if (!weights.starts_with(ema))
    throw UsageError("--weights {}: must be model, ema/RATE or ema/sigma_rel=S{}", weights,
                     weights.find(',') == weights.npos ? "" : "; separate the values of a list by blanks");
  return std::string(ema) + optim::EmaProfile::named(weights.substr(ema.size())).name();
}

void refuse_foreign(const std::string& file, const std::string& options) {
  const std::string_view format = checkpoint::foreign_format(file);
  if (format.empty()) return;
  throw DataError("{0}: is {1}; convert it to a checkpoint: lockstep convert {3} OUT.h5{2}", file, format,
                  options, shell_quoted(file));
}

void SavedModel::add_options(OptionSet& options) {
  options.add()(
      "weights", po::value<std::string>(),
      "model, ema/RATE or ema/sigma_rel=S; default: model, or the EMA weights of a file without a model");
  add_device(options);
  options.add()("precision", po::value<std::string>(),
                "fp32 or bf16; default: that of the run, or fp32 where bf16 is slower");
}

SavedModel::SavedModel(const std::string& file, const po::variables_map& values, const Program& program,
                       Session& session, const PreferredWeights& preferred) {
  const std::optional<std::string> weights = option_text(values, "weights"),
                                   device = option_text(values, "device"),
                                   precision = option_text(values, "precision");
  if (weights) weights_ = weights_group(*weights);
  comm::run_on_all(session.world(), [&] { refuse_foreign(file, " --config RUN.ini"); });
  const checkpoint::FileIndex index = checkpoint::read_index(file, session.world());
  if (index.config.empty())
    throw UsageError(
        "{0}: stores no configuration, so its model cannot be built. If {1} has the model, add the "
        "configuration: {1} convert {2} OUT.h5 --config CONFIG.ini. If a program with its own training loop "
        "wrote the file, evaluate the model there: by ls::evaluate(), or register it (ls::App) and use the "
        "program's verbs",
        file, program.name, shell_quoted(file));
  std::string fallback_warning;
  comm::run_on_all(session.world(), [&] {
    config_ = train::parse_stored_config(index.config, file + " /config", program.registries);
    model_ = train::build_model_of_file(config_);
    learned_from_ = train::learned_from(index);
    const auto format = index.provenance.find(train::format_provenance);
    if (config_.data.format.empty() && format != index.provenance.end()) config_.data.format = format->second;
    if (!weights) {
      const std::string configured = preferred ? preferred(config_) : "";
      if (!configured.empty()) weights_ = weights_group(configured);
      if (weights_.empty() || !index.group(weights_)) weights_ = index.default_weights();
      if (!configured.empty() && weights_ != weights_group(configured))
        fallback_warning =
            fmt::format("{}: has no weights {}, the first of sample.weights of the run; using {}", file,
                        configured, weights_);
    }
    task_ = train::make_task(config_);
    range_ = train::stored_range(index.provenance, file);
    if (range_ && config_.data.range.empty()) config_.data.range = {range_->low, range_->high};
    if (!range_ && task_->takes_unit_range()) range_ = train::assumed_range(config_.data);
  });
  if (!fallback_warning.empty()) session.log().warning("{}", fallback_warning);
  // Not the run's device otherwise: this node may have no GPU.
  session.use_device(device.value_or(config_.train.device == "cpu" ? "cpu" : "auto"),
                     {.threads = std::max(1, config_.train.threads), .sums = false});
  compute_ = train::choose_session_precision(session, precision.value_or(config_.train.precision),
                                             precision ? "convert" : "fp32");
  checkpoint::load_weights(index, *model_, session.world(), weights_, {.finite = false});
  model_->to(session.backend());
  step_ = index.position.step;
  digest_ = index.digest;
  tokenizer_ = train::stored_tokenizer(index.provenance);
}

std::vector<std::string> SavedModel::class_names() const {
  const auto y = learned_from_.fields.find("y");
  return y == learned_from_.fields.end() ? std::vector<std::string>{} : y->second.classes.value;
}

}  // namespace lockstep::cli
