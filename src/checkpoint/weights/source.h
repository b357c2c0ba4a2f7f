// Private to the module: a file with weights, of any format.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/load_plan.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

class WeightSource {
 public:
  explicit WeightSource(std::string path) : path_(std::move(path)) {}
  virtual ~WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  const std::string& path() const { return path_; }
  /// All tensors of the file. The requested ones are in group().
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::string& group() const { return group_; }
  /// All elements of tensors()[tensor] in the file's type, row-major and little endian; `out` has exactly
  /// their bytes. DataError if they are damaged, if the file has digests.
  virtual void read(std::size_t tensor, std::span<std::byte> out) const = 0;
  /// Null unless the file is a checkpoint.
  virtual const FileIndex* index() const { return nullptr; }
  /// The position in a run that the file records, in its metadata or as a checkpoint, with zeros for missing
  /// numbers. DataError if it is invalid.
  virtual Position position() const;
  /// Metadata of a .safetensors or .pt file, provenance of a checkpoint; empty for other files.
  virtual std::string metadata(const std::string& key) const;
  /// The configuration that the file stores; empty if it stores none. DataError if it has a null byte.
  std::string config() const;
  /// nanoGPT's options of its model in a file of torch.save; otherwise null.
  virtual nlohmann::json model_args() const;
  /// One line each: changes to the tensors of a foreign file.
  const std::vector<std::string>& notes() const { return notes_; }
  /// What the file lacks, for errors, if its name says that it is one of several: "it is 1 of 5 files ...".
  std::string part_of() const;
  /// Ignores "n_averaged", the number of updates beside the weights of PyTorch's AveragedModel, with a note.
  void leave_out_count();
  /// That number; none in other files.
  std::optional<std::int64_t> averaged() const { return averaged_; }

  /// Bytes of tensors()[tensor], checked before memory is allocated. DataError if the elements are not
  /// numbers, or if the file is too small for them.
  std::size_t bytes_of(std::size_t tensor) const;

 protected:
  virtual void check_stored(std::size_t) const {}

  std::string path_, group_;
  std::vector<StoredTensor> tensors_;
  std::vector<std::string> notes_;
  std::optional<std::int64_t> averaged_;
};

// Lockstep's metadata: the configuration, and the position's numbers under this prefix.
inline constexpr const char *config_key = "lockstep.config", *position_prefix = "lockstep.";

/// Opens a checkpoint, an HDF5 file with the group or, for "model", with arrays at its root, a .safetensors
/// file, a file of torch.save, of which `key` may choose a mapping (pytorch.h), or the index of several such
/// files (model.safetensors.index.json), which are beside it; the content decides. A folder of Hugging Face
/// stands for its weights. An
/// empty group means FileIndex::default_weights() of a checkpoint, otherwise "model". Collective. DataError
/// on other files, on data files, and if the group does not exist; UsageError on a key for a file without
/// mappings.
std::unique_ptr<WeightSource> open_weights(const std::string& path, const std::string& group,
                                           comm::HostGroup& world, const std::string& key = {});
/// A checkpoint whose index has been read. Not collective.
std::unique_ptr<WeightSource> open_weights(FileIndex index, const std::string& group);

}  // namespace lockstep::checkpoint
