// Saving and loading one file: all ranks write it, it gets its name when it is complete, and every read is
// verified by digests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// How a checkpoint is written.
struct SaveOptions {
  /// Part of the temporary name, ".NAME.MARK.tmp", so that two runs that both believe they hold the directory
  /// never write into one file. Empty: ".NAME.tmp". The same on every rank.
  std::string mark = {};
  /// Called on rank 0 before the file is laid out and before it gets its name. What it throws becomes the
  /// error of the save.
  std::function<void()> check_may_write = {};
  /// Save floating-point tensors even if they hold numbers that are not finite.
  bool allow_non_finite = false;
};

/// Writes `state_dict` to `path`, replacing a file of that name. Collective.
///
/// Every rank writes and digests its share of the bytes, into a temporary file in the same directory; when
/// all have synced, rank 0 adds the structure with the digests, syncs, renames and syncs the directory. No
/// collective depends on the number of tensors. Any failure becomes the same error on all ranks, and the
/// temporary file is removed: TrainingError naming the first floating-point tensor (parameter, buffer, EMA
/// weights, optimizer or hook state) with numbers that are not finite; DataError if the storage is full or
/// read-only, UsageError if the directory is not writable, FailureError if the storage failed (EIO) or the
/// ranks' state dicts differ in names, dtypes or shapes.
void save_file(const std::string& path, const StateDict& state_dict, comm::HostGroup& world,
               const SaveOptions& options = {});

/// How weights are loaded.
struct LoadOptions {
  /// false: names that are missing, unexpected, of another shape or of an unsuitable type are warnings, and
  /// their tensors keep their values.
  bool strict = true;
  /// Round float64 in the file to float32.
  bool narrow = false;
  /// load_weights: parameters that are not finite are an error; false: a warning, as are buffers.
  bool finite = true;
  /// load_weights: of a file of torch.save the tensors under this key; '/' goes into a mapping in a mapping.
  std::string key = {};
};

/// What was loaded, and what was not.
struct LoadReport {
  FileIndex index;  ///< of a file that is not a checkpoint only path, position and config, if it has them
  std::vector<std::string> warnings;  ///< one line each: what is missing, ignored or different
  std::vector<std::string> notes;     ///< one line each: how a foreign file was read
  /// load_weights: facts for checkpoints of these weights. `weights_layout`: names and layout of the file
  /// that they first came from, if not Lockstep's, for arrange().
  Provenance provenance;
};

/// Reads the tensors and attributes that `state_dict` lists from a checkpoint. Collective; every rank reads,
/// and verifies, what it lists. Names are compared after stripping any stack of leading "module." and
/// "_orig_mod.".
///
/// DataError if the file is not complete (see read_index), a digest is wrong, or, listing all of them at
/// once, names are missing, unexpected, of another shape, or of a type whose values the type here cannot all
/// hold (float32 takes 16-bit floats and, with `narrow`, float64; int64 takes shorter integers), or an
/// attribute that must be equal is not; and always if names collide after stripping. A section that the file
/// lacks altogether: "model" is an error; "ema/..." starts from the weights just loaded, any other from zero,
/// with a warning. Sections of the file that `state_dict` does not list are named in a warning. After an
/// error in reading the tensors' values are unspecified; an error about names leaves them untouched.
LoadReport load_file(const std::string& path, const StateDict& state_dict, comm::HostGroup& world,
                     const LoadOptions& options = {});

/// Weights only: from the group `group` of a checkpoint ("model", "ema/0.999"; empty: what
/// FileIndex::default_weights() says), where buffers that an EMA lacks come from "model"; from any HDF5 file
/// that has a group of arrays under the model's names ("case/initial"; for "model" arrays at the root will
/// do); from a .safetensors file; from a file of torch.save. A gpt takes what Hugging Face's GPT-2 stores:
/// names without "transformer.", matrices as [in, out], masks, a head that equals the embedding; notes say
/// so. Collective. Errors as load_file; also DataError if a number of the file is beyond the type here or,
/// see LoadOptions, not finite.
LoadReport load_weights(const std::string& path, const ModelState& model, comm::HostGroup& world,
                        const std::string& group = {}, const LoadOptions& options = {});
/// The same on this rank alone, not collective: "rank 0 loads, and DataParallel gives all ranks its weights".
LoadReport load_weights(const std::string& path, const ModelState& model, const std::string& group = {},
                        const LoadOptions& options = {});
/// The same from the checkpoint that the index was read from, wherever its path leads by now. Collective.
LoadReport load_weights(const FileIndex& index, const ModelState& model, comm::HostGroup& world,
                        const std::string& group = {}, const LoadOptions& options = {});

}  // namespace lockstep::checkpoint
