// Loading: by name, verified by digest while reading, and strict about what fits.
#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

struct LoadOptions {
  /// false: names that are missing, unexpected or wrongly shaped are warnings and are left as they are.
  bool strict = true;
};

struct LoadReport {
  FileIndex index;
  std::vector<std::string> warnings;  ///< one line each: what is missing, ignored or different
};

/// Reads the tensors and attributes that `contents` lists from a checkpoint. Collective; every rank reads,
/// and verifies, what it lists. Names are compared after stripping any stack of leading "module." and
/// "_orig_mod.".
///
/// DataError if the file is not whole (see read_index), a digest is wrong, or, listing all of them at once,
/// names are missing, unexpected or of another shape or dtype (float64, float16 or bfloat16 in the file are
/// not taken for float32), names collide after stripping, or an attribute that must be equal is not. A
/// section that the file lacks altogether: "model" is an error; "ema/..." starts from the weights just
/// loaded, any other from zero, with a warning. Sections of the file that `contents` does not list are named
/// in a warning. After an error in reading the tensors' values are unspecified; an error about names leaves
/// them untouched.
LoadReport load_file(const std::string& path, const Contents& contents, comm::Communicator& communicator,
                     const LoadOptions& options = {});

/// Weights only, from the group `group` of a checkpoint ("model", "ema/0.999"), or of any HDF5 file that has
/// a group of arrays under the model's names ("case/initial"). Buffers that an EMA group lacks come from
/// "model". From files that are no checkpoints, elements are widened to float32 and int64 where that loses
/// nothing. Errors as load_file.
LoadReport load_weights(const std::string& path, const ModelState& model, comm::Communicator& communicator,
                        const std::string& group = "model", const LoadOptions& options = {});

}  // namespace lockstep::checkpoint
