// Private to the room: what a data file holds, for readers and for the errors of those who gave the wrong
// one.
#pragma once

#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// /x of a file of images. DataError if it is missing, saying what the file is instead.
hdf5::Dataset open_images(const hdf5::File& file);

/// /tokens of a file of text. DataError as above.
hdf5::Dataset open_tokens(const hdf5::File& file);

}  // namespace lockstep::data
