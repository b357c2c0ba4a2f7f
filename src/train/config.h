// The configuration of a run: its sections, and how it is read from an INI file and --set.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/tasks/registry.h"
#include "train/sections.h"

namespace lockstep::train {

struct Config {
  models::ModelConfig model;
  tasks::TaskConfig task;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EmaConfig ema;
  /// [ddp], and the keys of [train] about steps.
  ddp::Options ddp{.seed = 1, .graph = ddp::Graph::automatic};
  CheckpointConfig checkpoint;
  FaultConfig fault;
  LogConfig log;
  SampleConfig sample;
  ReportConfig report;

  /// The things that it may name. Texts of the same run are read with the same registries.
  const Registries* registries = nullptr;
  /// A note about keys of a user's file that belong to another optimizer, and have no effect. Empty: none.
  std::string note;
  /// Not keys: the keys that the user set by --set, or in the file to other than the default, and their
  /// values.
  std::vector<std::pair<std::string, std::string>> user_settings;
};

/// A key under its full name, "train.steps".
using Key = Option<Config>;

inline constexpr std::string_view model_name_key = "model.name", task_name_key = "task.name",
                                  optimizer_name_key = "optimizer.name", data_format_key = "data.format";
/// "task." or "diffusion.": the section of the options of a thing that the key SECTION.name names.
template <class Type>
std::string section_prefix(const Type& type, std::string_view name_key) {
  return type.section.empty() ? std::string(name_key.substr(0, name_key.find('.') + 1)) : type.section + ".";
}

/// The keys of a configuration of this model, task, optimizer and format, or of none yet, in the order of
/// printing. optimizer.group.N, of which there may be many, is not among them.
std::vector<Key> keys_of(const Config& of);

/// Reads an INI file and the --set overrides ("section.key=value"). Values may be quoted (option.h). The
/// registries hold what model.name and task.name can name, and outlive the configuration. Throws UsageError
/// naming file, line, key and value, of all mistakes that are independent of each other: unknown keys (with
/// the nearest known one), keys of another model or task, values out of range, impossible combinations. A key
/// of another optimizer is only noted. Options of the model that the configuration lacks are those of
/// config.json in the folder of another program that holds the weights: `folder`, or else train.init. Others
/// must fit the weights when they are loaded.
Config read_config(const std::string& path, const std::vector<std::string>& overrides,
                   const Registries& registries = built_in_registries(), const std::string& folder = {});
/// The same from text; `origin` names it in errors.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides = {},
                    const Registries& registries = built_in_registries(), const std::string& folder = {});
/// The same for the text of a run directory or a checkpoint, which another version may have written: an
/// unknown key is ignored if its value is empty, 0 or false. Any other value is an error.
Config parse_stored_config(const std::string& text, const std::string& origin,
                           const Registries& registries = built_in_registries());

/// Every key with its resolved value, as an INI file that read_config takes.
std::string to_text(const Config& config);
/// "PATTERN LR_FACTOR DECAY_FACTOR", the value of optimizer.group.N.
std::string to_text(const optim::ParamGroup& group);

// The keys for readers: lockstep train --help-keys, lockstep.ini(5), docs/configuration.md. All three are
// generated from the descriptions of the options.

/// One line a key: name, default, meaning, allowed values.
std::string describe_keys(const Registries& registries);
/// The manual page lockstep.ini(5), in the macros of man(7).
std::string keys_as_man_page(const std::string& version);
/// docs/configuration.md.
std::string keys_as_markdown();

}  // namespace lockstep::train
