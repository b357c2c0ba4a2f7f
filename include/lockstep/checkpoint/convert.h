// Weights without a run: reading them from a file of any known format, mixing them from a run's profile
// snapshots, and writing them to a checkpoint, a .safetensors or a .pt file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::optim {
class EmaProfile;
}

namespace lockstep::checkpoint {

struct FileIndex;

/// Named tensors in memory, with their origin.
struct Weights {
  std::vector<NamedTensor> tensors;  ///< by name, in CPU memory
  std::vector<Section> averages;     ///< "ema/RATE": EMA weights of the same names, for a checkpoint
  std::vector<Section>
      data;  ///< "data/FIELD": the normalisation of fields, see add_meaning(), for a checkpoint
  std::vector<Section> optimizer;  ///< "optimizer", "optimizer/SLOT": for a checkpoint
  Position position;               ///< zeros if the file has none
  std::string config;              ///< empty: unknown
  Provenance provenance;           ///< where they come from
  std::vector<std::string> notes;  ///< one line each: what differs from the file
};

/// The foreign_weights() of all models.
using KnownForeign = std::span<const ForeignWeights* const>;

/// All tensors of `group` (empty: FileIndex::default_weights(), or "model") under their own names, in the
/// file's order, each in its own type; of an EMA also those of "model" that it lacks (buffers). Reads the
/// files of load_weights, without renaming or transposing. BOOL becomes uint8; a note says so, and another
/// names the tensors with numbers that are not finite. DataError if the file is bad, has no such group, or
/// has element types that a Tensor lacks (int16, uint32 ...). Of a file of torch.save `key` may choose the
/// mapping (LoadOptions::key). The part of a configuration beside or in the weights that describes one of the
/// `known` models becomes provenance. Holds everything in memory. Not collective.
Weights read_weights(const std::string& path, const std::string& group = {}, const std::string& key = {},
                     KnownForeign known = {});

/// Adds the meaning of a checkpoint's weights: its groups data/FIELD, and the provenance of its data. Does
/// nothing for other files. DataError if a tensor is damaged. Not collective.
void add_meaning(const FileIndex& index, std::vector<Section>& sections, Provenance& provenance);

/// The kind of a file of weights of other programs, for messages: "a .safetensors file", "a file of
/// torch.save". Empty for other files, and if the file does not exist. Errors: read_index.
std::string_view foreign_format(const std::string& path);

/// True if the name ends with .safetensors, .pt or .pth, for libraries of Python.
bool is_for_python(std::string_view path);
/// Whether a tensor of this name is a running statistic of a batch norm, not a parameter.
bool is_running_statistic(std::string_view name);

/// Adds the tensors of `average` as EMA weights of that profile. `path` and `average_path` are their files:
/// DataError naming them if names or shapes differ, or if one type cannot hold the values of the other;
/// UsageError if there are EMA weights of the profile already.
void add_average(Weights& weights, const std::string& path, const optim::EmaProfile& profile,
                 const Weights& average, const std::string& average_path);

/// Adds the state of PyTorch's AdamW or Adam: an optimizer.state_dict() in a file of torch.save, alone or in
/// other mappings. Parameters have the file's names (param_names) or, within each of its groups, the model's
/// order. A step of 0 becomes that of the state. Returns a line about it. DataError if the state is another
/// one, if names or shapes differ, or if order and shapes leave a choice. Meta tensors will do for the model.
std::string add_optimizer(Weights& weights, const std::string& path, const ModelState& model);

/// Casts floating-point tensors to `dtype`, including averages. DataError naming the tensor if a number is
/// out of range.
void cast_floats(Weights& weights, DType dtype);

/// The layout of the program's own checkpoints.
inline constexpr std::string_view own_layout = "lockstep";
/// Renames and transposes the weights for a file that is_for_python(), to own_layout or the layout of one of
/// the `known` models ("huggingface": matrices of a gpt as [in, out]). Without a layout: to that of the
/// original file of the weights, if a checkpoint recorded it; otherwise no change. UsageError naming their
/// file `path` if they belong to no model with that layout, and for own_layout if they are still in another
/// layout.
void arrange(Weights& weights, const std::optional<std::string>& layout, const std::string& path,
             KnownForeign known);

/// UsageError unless the name ends with .h5, .hdf5, .safetensors, .pt or .pth in a directory that can be
/// written, and is free, or that of a regular file with `replace`. Never replaces `inputs` (files and
/// folders), links, devices and pipes.
void check_writable(const std::string& path, bool replace, std::span<const std::string> inputs = {});

/// Writes a checkpoint with /model and averages only (.h5, .hdf5), or, without averages, a .safetensors file
/// or one that torch.load reads (.pt, .pth), with position and configuration for read_weights. Also writes
/// numbers that are not finite. Afterwards the file is complete and on storage; an error leaves it unchanged.
/// Errors: check_writable; DataError if a name is invalid in that format, or storage is full. Not collective.
void write_weights(const std::string& path, const Weights& weights, bool replace = false);

/// The result of reconstruct_ema().
struct EmaReconstructionReport {
  std::string group;                 ///< of the file written: "ema/sigma_rel=0.15"
  std::int64_t step = 0;             ///< of the average
  double error = 0;                  ///< of the profile, see optim::EmaMixture
  std::vector<std::string> sources;  ///< profiles of the mixture
  std::int64_t snapshots = 0;        ///< up to `step`
  std::int64_t first_step = 0;       ///< of the oldest snapshot
};

/// Writes to `out` the average of width sigma_rel after `step` steps (none: those of the newest snapshot),
/// from RUN/ema/step-...h5 up to that step: a checkpoint with the group ema/sigma_rel=SIGMA_REL of all
/// parameters and buffers, the run's configuration, and its sources as provenance `ema_sources`. Parameters
/// and averaged buffers are mixed in float64; other buffers are those of that step. Collective; ranks share
/// the work, and the bits are the same at any number of ranks.
///
/// UsageError if the width is not between 0 and 0.28, there is no snapshot (of that step), or the error of
/// the profile is above 10 % (names possible widths); DataError if a snapshot is damaged or belongs to
/// averages with another start; otherwise as save_file.
EmaReconstructionReport reconstruct_ema(const std::string& run_directory, double sigma_rel,
                                        std::optional<std::int64_t> step, const std::string& out,
                                        comm::HostGroup& world);

}  // namespace lockstep::checkpoint
