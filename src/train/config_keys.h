// The table of configuration keys: one row a key serves reading, checking, printing, comparing and
// describing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "train/config.h"

namespace lockstep::train {

/// An Option of a section under its full name, "train.steps".
using Key = Option<Config>;

/// All keys but optimizer.group.N, in the order they are printed.
const std::vector<Key>& config_keys();

}  // namespace lockstep::train
