// Private to the module: the names of labels 0, 1, 2 ..., kept with /y.
#pragma once

#include <string>
#include <vector>

#include "lockstep/hdf5/dataset.h"

namespace lockstep::data {

/// What an attribute holds at most: HDF5 keeps it in the header of /y.
inline constexpr std::size_t most_class_name_bytes = 60'000;

/// Attribute classes of /y, a name a line; none if it is not there, or not one text.
std::vector<std::string> class_names_of(const hdf5::Dataset& y);
/// Names hold no line ends, and take most_class_name_bytes at most, ends of lines included.
void store_class_names(hdf5::Dataset& y, const std::vector<std::string>& names);

}  // namespace lockstep::data
