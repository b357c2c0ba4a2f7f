// The table of configuration keys: one row a key serves reading, printing, comparing and describing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/train/config.h"

namespace lockstep::train {

struct Key {
  std::string name;  ///< "train.steps"
  std::string help;  ///< one line
  bool may_change;   ///< on resume
  std::function<void(Config&, const std::string& value)>
      set;  ///< throws UsageError with what is wrong about the value
  std::function<std::string(const Config&)> get;
};

/// All keys but optimizer.group.N, in the order they are printed.
const std::vector<Key>& config_keys();

}  // namespace lockstep::train
