// Private to the module: what a data file holds, for readers and for the errors of those who gave the wrong
// one.
#pragma once

#include <string>
#include <vector>

#include "lockstep/hdf5/dataset.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// /x of a file of images. DataError if it is missing, saying what the file is instead.
hdf5::Dataset open_images(const hdf5::File& file);

/// /tokens of a file of text. DataError as above.
hdf5::Dataset open_tokens(const hdf5::File& file);

/// What an attribute holds at most: HDF5 keeps it in the header of /y.
inline constexpr std::size_t most_class_name_bytes = 60'000;

/// Attribute classes of /y, a name a line; none if it is not there, or not one text.
std::vector<std::string> class_names_of(const hdf5::Dataset& y);
/// Names hold no line ends, and take most_class_name_bytes at most, ends of lines included.
void store_class_names(hdf5::Dataset& y, const std::vector<std::string>& names);

}  // namespace lockstep::data
