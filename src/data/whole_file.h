// Private to the room: an HDF5 file that appears whole or not at all.
#pragma once

#include <functional>
#include <string>

#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// Writes a file under a temporary name beside `path`, brings it to disk and renames it. If `write` throws,
/// nothing is left behind.
void write_whole(const std::string& path, const std::function<void(hdf5::File&)>& write);

}  // namespace lockstep::data
