// Private to the module: .safetensors files: eight bytes with the size of a JSON header, the header, and the
// elements of all tensors without a gap. The format: https://github.com/huggingface/safetensors#format.
// Reading checks all rules of the format; every failure is a DataError with file, tensor and cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "checkpoint/weights/source.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

/// Maximal size of a header in the format.
inline constexpr std::uint64_t max_safetensors_header_bytes = 100'000'000;

/// A tensor's name, type and shape (at most 32 extents), and the place of its elements.
struct SafetensorsEntry : StoredTensor {
  std::uint64_t offset = 0;  ///< of the first element, from the end of the header
  std::uint64_t bytes = 0;   ///< according to dtype and shape
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their elements
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON text of a header whose tensors have `data_bytes` bytes in all. Recursion-free; memory in
/// proportion to the text. `path` is for errors: DataError on text that is not JSON or has another nesting,
/// fields that are unknown, missing, repeated or of another kind, unknown dtypes, repeated names, sizes that
/// do not match dtype and shape, and elements that overlap, leave a hole or are outside the file.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& path);

/// An open file with its header.
class SafetensorsFile final : public WeightSource {
 public:
  /// DataError if it is not a complete .safetensors file.
  explicit SafetensorsFile(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  void read(std::size_t tensor, std::span<std::byte> out) const override;
  std::string metadata(const std::string& key) const override;

 private:
  OpenFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
};

/// Writes tensors (CPU, row-major) under distinct names atomically, replacing a file of that name. Wide
/// elements come first, so that all are aligned. DataError if a name is not UTF-8, or as OpenFile.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace lockstep::checkpoint
