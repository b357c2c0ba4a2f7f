// Saving: one file, written by all ranks together, under its final name only when whole.
#pragma once

#include <functional>
#include <string>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

struct SaveOptions {
  /// Part of the temporary name, ".NAME.MARK.tmp": two runs that both believe the place is theirs never write
  /// into one file. Empty: ".NAME.tmp". The same on every rank.
  std::string mark = {};
  /// Called on rank 0 before the file is laid out and before it gets its name. What it throws is the error.
  std::function<void()> check_may_write = {};
  /// Floating-point tensors that hold numbers that are not finite are saved all the same.
  bool allow_non_finite = false;
};

/// Writes `contents` to `path`, replacing a file of that name. Collective.
///
/// Every rank writes and digests its share of the bytes, into a temporary file in the same directory; when
/// all have synced, rank 0 adds the structure with the digests, syncs, renames and syncs the directory. No
/// collective depends on the number of tensors. Any failure becomes the same error on all ranks, and the
/// temporary file is removed: TrainingError naming the first tensor of a floating type (parameter, buffer,
/// average, optimizer or hook state) that holds numbers that are not finite; DataError if the storage is full
/// or read-only, UsageError if the place is not writable, FailureError if the storage failed (EIO) or the
/// ranks' contents differ in names, dtypes or shapes.
void save_file(const std::string& path, const Contents& contents, comm::HostGroup& communicator,
               const SaveOptions& options = {});

}  // namespace lockstep::checkpoint
