// RUN/pictures.txt: which pictures the run trains on.
#pragma once

#include <string>

#include "lockstep/base/log.h"

namespace lockstep::train {

/// Writes what the folders of the data contain, DataSets::listing(), to RUN/pictures.txt. Where an earlier
/// start has written it, warns first of pictures that are new, gone or of another size since. Does nothing if
/// it is empty. Throws like write_text_atomically().
void record_listing(const std::string& run, const std::string& listing, const Log& log);

}  // namespace lockstep::train
