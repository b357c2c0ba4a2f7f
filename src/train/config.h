// The configuration of a run: its sections, and how it is read from an INI file and --set.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/optim/registry.h"
#include "lockstep/tasks/registry.h"
#include "train/sections.h"

namespace lockstep::train {

using optim::EmaConfig;
using optim::OptimizerConfig;
using optim::ParamGroup;

struct Config {
  models::ModelConfig model;
  tasks::TaskConfig task;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EmaConfig ema;
  DdpConfig ddp;
  CheckpointConfig checkpoint;
  FaultConfig fault;
  LogConfig log;
  SampleConfig sample;
  ReportConfig report;

  /// What it may name. Texts of the same run are read with the same registries.
  const Registries* registries = nullptr;
};

/// A key under its full name, "train.steps".
using Key = Option<Config>;

/// The keys of a configuration with this model and this task (null: none is named yet), in the order they are
/// printed. optimizer.group.N, of which there may be many, is not among them.
std::vector<Key> keys_of(const models::ModelType* model, const tasks::Registry::Type* task);

/// Reads an INI file and the --set overrides ("section.key=value"). Values may be quoted (option.h). The
/// registries hold what model.name and task.name can name, and outlive the configuration. Throws UsageError
/// naming file, line, key and value, of all mistakes that are independent of each other: unknown keys (with
/// the nearest known one), keys of another model or task, values out of range, impossible combinations.
Config read_config(const std::string& path, const std::vector<std::string>& overrides,
                   const Registries& registries = built_in_registries());
/// The same from text; `origin` names it in errors.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& overrides = {},
                    const Registries& registries = built_in_registries());
/// The same for the text of a run directory or a checkpoint, which another version may have written: an
/// unknown key is ignored if its value is empty, 0 or false. Any other value is an error.
Config parse_stored_config(const std::string& text, const std::string& origin,
                           const Registries& registries = built_in_registries());

/// Every key with its resolved value, as an INI file that read_config takes.
std::string to_text(const Config& config);
/// "PATTERN LR_FACTOR DECAY_FACTOR", the value of optimizer.group.N.
std::string to_text(const ParamGroup& group);

// The keys for readers: lockstep train --help-keys, lockstep.ini(5), docs/configuration.md. All three are
// made from the descriptions of the options.

/// One line a key: name, default, meaning, allowed values.
std::string describe_keys(const Registries& registries);
/// The manual page lockstep.ini(5), in the macros of man(7).
std::string keys_as_man_page(const std::string& version);
/// docs/configuration.md.
std::string keys_as_markdown();

}  // namespace lockstep::train
