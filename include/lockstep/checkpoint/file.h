// Saving and loading one file: all ranks write it, it gets its name when it is complete, and digests verify
// every read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

/// Options of writing a checkpoint.
struct SaveOptions {
  /// Part of the temporary name, ".NAME.MARK.tmp", so that two runs that both assume to hold the directory
  /// never write into one file. Empty: ".NAME.tmp". The same on every rank.
  std::string mark = {};
  /// Called on rank 0 before the layout of the file and before it gets its name. Its exceptions become errors
  /// of the save.
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

/// Options of loading.
struct LoadOptions {
  /// false: missing and unexpected names, other shapes and unsuitable types are warnings, and their tensors
  /// keep their values.
  bool strict = true;
  /// Round float64 in the file to float32.
  bool narrow = false;
  /// load_weights: parameters that are not finite are an error; false: a warning, as for buffers.
  bool finite = true;
  /// load_weights: buffers that the file lacks keep their values, with a note.
  bool params_only = false;
  /// load_weights: selects the tensors of a file of torch.save under this key; '/' separates nested mappings.
  std::string key = {};
  /// Write warnings and notes on standard error, on rank 0.
  bool log = true;
};

/// The result of a load.
struct LoadReport {
  FileIndex index;  ///< for other files than checkpoints only path, position and config, if any
  std::vector<std::string> warnings;  ///< one line each, logged: missing, ignored or different tensors
  std::vector<std::string> notes;     ///< one line each, logged: changes to the tensors of a foreign file
  /// load_weights: facts for checkpoints of these weights. `weights_layout`: names and layout of their
  /// original file, if not Lockstep's, for arrange().
  Provenance provenance;
};

/// Reads the tensors and attributes that `state_dict` lists from a checkpoint. Collective. If all ranks list
/// the same tensors, the job reads and verifies each block once, and sends parts of a partition to their
/// owners alone; otherwise every rank reads and verifies those that it lists. Names are compared after
/// stripping any stack of leading "module." and "_orig_mod.".
///
/// DataError if the file is not complete (see read_index), a digest is wrong, or, listing all at once, for
/// missing and unexpected names, other shapes, and types whose values the target's type cannot hold (float32
/// takes 16-bit floats and, with `narrow`, float64; int64 takes shorter integers), or if an attribute differs
/// that must be equal; and always if names collide after stripping. If the file lacks a whole section: for
/// "model" it is an error; "ema/..." starts from the loaded weights, any other from zero, with a warning.
/// Sections of the file that `state_dict` does not list are named in a warning. After an error in reading,
/// the tensors' values are unspecified; an error about names leaves them unchanged.
LoadReport load_file(const std::string& path, const StateDict& state_dict, comm::HostGroup& world,
                     const LoadOptions& options = {});

/// Weights only: from the group `group` of a checkpoint ("model", "ema/0.999"; empty:
/// FileIndex::default_weights()), where buffers that an EMA lacks come from "model"; from any HDF5 file that
/// has a group of arrays under the model's names ("case/initial"; for "model" arrays at the root will do);
/// from a .safetensors file; from a file of torch.save; from the index of several such files beside it
/// (model.safetensors.index.json). Left out with a note: a prefix that all names share, if names fit only
/// without it, and n_averaged beside the weights of PyTorch's AveragedModel. A gpt also loads files of
/// Hugging Face's GPT-2, with names without "transformer.", matrices as [in, out], masks and a head that
/// equals the embedding, and reports it in notes. Collective; one rank reads each tensor. Errors: load_file;
/// also DataError if a number of the file is out of range for the target's type or, see LoadOptions, not
/// finite.
LoadReport load_weights(const std::string& path, const ModelState& model, comm::HostGroup& world,
                        const std::string& group = {}, const LoadOptions& options = {});
/// The same on this rank alone, not collective: rank 0 loads, and DataParallel gives its weights to all
/// ranks.
LoadReport load_weights(const std::string& path, const ModelState& model, const std::string& group = {},
                        const LoadOptions& options = {});
/// The same from the checkpoint of the index, even if its path now leads elsewhere. Collective.
LoadReport load_weights(const FileIndex& index, const ModelState& model, comm::HostGroup& world,
                        const std::string& group = {}, const LoadOptions& options = {});

}  // namespace lockstep::checkpoint
