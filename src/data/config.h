// The section `data` of a configuration.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::data {

struct DataConfig {
  std::vector<std::string> train;  ///< HDF5 data files
  std::string eval;                ///< HDF5 data file; or
  double eval_fraction = 0;        ///< held out of `train`, chosen by the seed
  bool crop = false, flip = false;

  static std::vector<Option<DataConfig>> options();
};

}  // namespace lockstep::data
