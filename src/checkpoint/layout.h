// Private to the room: the structure of the file, from contents to HDF5.
#pragma once

#include <string_view>

#include "checkpoint/storage.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

/// What the index of a file with these contents will be; digests and offsets are 0. UsageError, naming it,
/// for what a file cannot hold: names with '/' or line ends, two of a name, tensors that are not plain CPU
/// memory.
FileIndex index_of(const Contents& contents);

/// True if HDF5 and the manifest can hold it as the name of one tensor.
bool is_link_name(std::string_view name);

/// Writes everything but the elements into `file`, and sets the tensors' offsets. Groups and attributes are
/// in the index's order, so equal contents make equal structures.
void lay_out(FileIndex& index, OpenFile& file);

}  // namespace lockstep::checkpoint
