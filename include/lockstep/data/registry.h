// The data sets of a program that data.format can name.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/registry.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// A data set is made from its files, those of data.train or data.eval, which it opens itself:
/// D(const std::vector<std::string>& files).
using Registry = lockstep::Registry<Dataset, const std::vector<std::string>&>;

}  // namespace lockstep::data
