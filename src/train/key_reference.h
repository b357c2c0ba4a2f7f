// The keys of a configuration for readers: lockstep train --help-keys, lockstep.ini(5),
// docs/configuration.md. All three are made from the descriptions of the options.
#pragma once

#include <string>

#include "lockstep/tasks/registry.h"

namespace lockstep::train {

/// One line a key: name, default, meaning, allowed values.
std::string describe_keys(const Registries& registries);
/// The manual page lockstep.ini(5), in the macros of man(7).
std::string keys_as_man_page(const std::string& version);
/// docs/configuration.md.
std::string keys_as_markdown();

}  // namespace lockstep::train
