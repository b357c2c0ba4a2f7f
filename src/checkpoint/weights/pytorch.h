// Private to the module: files of torch.save (.pt, .pth, .bin) since PyTorch 1.6: a zip archive with a
// pickle, data.pkl, and an entry for each storage, data/KEY. The pickle is read without running it
// (pickle.h). Values other than tensors and Python's own types are refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/weights/source.h"
#include "checkpoint/weights/zip.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

/// A tensor's name (printable UTF-8), type and shape (at most 32 extents), and the place of its elements in a
/// storage.
struct PytorchTensor : StoredTensor {
  std::size_t element_bytes = 0;
  std::vector<std::int64_t> strides;  ///< in elements, from 0 on
  std::size_t storage = 0;            ///< index of the entry
  std::uint64_t offset = 0;           ///< of the first element in the storage, in bytes
  std::uint64_t span_bytes = 0;       ///< from the first element to the end of the last in the storage
  std::uint64_t bytes = 0;            ///< of all elements
};

/// An open file with the tensors of one mapping in its pickle; notes() name the mapping and values that are
/// not tensors. Not for several threads at once.
class PytorchFile final : public WeightSource {
 public:
  /// Reads the mapping of names to tensors under `key`, where '/' separates nested values, and "/" is the
  /// outermost one. Without a key: the outermost mapping, if tensors are only there, otherwise the one inside
  /// it that holds tensors; of several the first of state_dict, model_state_dict and model.
  ///
  /// DataError if the file is not whole (zip.h), was written before PyTorch 1.6, by torch.jit.save or on a
  /// big-endian machine; if its pickle holds anything but tensors and values of Python's own types
  /// (pickle.h); if there is no such mapping, or if it is ambiguous; if a tensor is not within its storage;
  /// and if the tensors would take more than 16 times the bytes of the file.
  /// With `contents`: reads all tensors of the pickle, for contents().
  explicit PytorchFile(const std::string& path, const std::string& key = {}, bool contents = false);

  /// tensors(), in the order of the mapping, as views of storages.
  const std::vector<PytorchTensor>& views() const { return views_; }
  /// Integers under "model_args" of the outermost mapping: nanoGPT's options of the model. May be null.
  nlohmann::json model_args() const override { return model_args_; }
  /// The pickle: keys as texts, integers signed, tensors as their unsigned indices in tensors(), null for all
  /// but mappings, lists, texts, booleans and integers.
  const nlohmann::json& contents() const { return contents_; }
  /// The text of an entry of write_pytorch next to data.pkl; empty if there is none.
  std::string metadata(const std::string& key) const override;
  /// DataError if the storage does not have its checksum.
  void read(std::size_t tensor, std::span<std::byte> out) const override;

 private:
  ZipFile zip_;
  std::string root_;  ///< the folder of all entries, with '/'
  std::vector<PytorchTensor> views_;
  nlohmann::json model_args_, contents_;
  mutable std::vector<bool> checked_;  ///< by entry of the archive
};

/// Whether a file begins (its first 512 bytes, or all of it) as a zip archive; or as torch.save's format
/// before PyTorch 1.6.
bool begins_as_zip(std::string_view start);
bool begins_as_old_pytorch(std::string_view start);

/// Writes tensors (CPU, row-major, of types that checkpoints hold) under distinct names atomically, replacing
/// a file of that name, as an OrderedDict that torch.load(FILE, weights_only=True) reads; `metadata` are
/// entries that torch.load ignores. The same bytes for the same tensors. DataError as OpenFile.
void write_pytorch(const std::string& path, std::span<const NamedTensor> tensors,
                   const std::map<std::string, std::string>& metadata);

}  // namespace lockstep::checkpoint
