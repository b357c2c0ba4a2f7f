// The tasks that a configuration can name, and the registries of everything that a program can add.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/registry.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/models/registry.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tasks/task.h"

namespace lockstep {
namespace tasks {

/// A task is constructed from its options.
using Registry = lockstep::Registry<Task>;
/// The section [task].
using TaskConfig = Registry::Choice;

/// Adds classification, language, regression, binary and diffusion.
void add_built_in(Registry& registry);

}  // namespace tasks

/// The models, tasks, optimizers and data sets that a configuration can name, and the tokenizers that a data
/// file can: the built-in ones and those of a program.
struct Registries {
  std::string program = "lockstep";  ///< its name, for messages
  models::Registry models;           ///< by model.name
  tasks::Registry tasks;             ///< by task.name
  optim::Registry optimizers;        ///< by optimizer.name
  data::Registry data;               ///< by data.format
  data::Tokenizers tokenizers;       ///< by the attribute tokenizer of a data file
};
/// Adds the built-in entries.
void add_built_in(Registries& registries);
/// Registries that have only these.
const Registries& built_in_registries();

}  // namespace lockstep
