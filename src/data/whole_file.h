// Private to the module: data files that appear under their names only when they are whole.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "data/prepare.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {

/// UsageError unless the file may be made, before anything is read: Output says which may. `statistics`: a
/// data file that is read, too; or empty.
void check_output(std::span<const std::string> inputs, const Output& output,
                  const std::string& statistics = {});

/// write(file) fills a new file, which gets the output's name when it is on storage. If anything fails,
/// nothing is left behind, and a file that was there is as it was.
void write_whole(const Output& output, const std::function<void(hdf5::File&)>& write);

}  // namespace lockstep::data
