// Private to the module: the datasets that a virtual dataset takes its elements from.
#pragma once

#include "hdf5/library.h"
#include "lockstep/hdf5/dataset.h"

namespace lockstep::hdf5 {

/// HDF5 reads fill values where a source is missing, without a word: each is opened, once, before anything of
/// the dataset is used. They may be virtual in turn. `properties`: those the dataset was created with.
/// Returns how many elements the sources have together. DataError naming the dataset and the source.
std::int64_t check_sources(const Dataset& dataset, hid_t properties);

}  // namespace lockstep::hdf5
