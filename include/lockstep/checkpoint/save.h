// Saving: one file, written by all ranks together, under its final name only when whole.
#pragma once

#include <string>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Writes `contents` to `path`, replacing a file of that name. Collective.
///
/// Every rank digests and writes its share of the bytes, into ".NAME.tmp" in the same directory; when all
/// have synced, rank 0 renames it and syncs the directory. No collective depends on the number of tensors.
/// Any failure becomes the same error on all ranks, and the temporary file is removed: DataError if the
/// storage is full or read-only, UsageError if the place is not writable, FailureError if the storage failed
/// (EIO) or the ranks' contents differ in names, dtypes or shapes.
void save_file(const std::string& path, const Contents& contents, comm::Communicator& communicator);

}  // namespace lockstep::checkpoint
