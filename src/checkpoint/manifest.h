// Private to the module: /manifest, and the text that the root digest is taken over.
#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

/// One line a tensor: "DIGEST BYTES DTYPE [EXTENT,EXTENT] /GROUP/NAME".
std::string manifest_text(const std::vector<TensorEntry>& tensors);
/// Inverse of manifest_text, but for offsets. DataError naming `file` and the line.
std::vector<TensorEntry> parse_manifest(const std::string& text, const std::string& file);

/// Everything that resume uses but the elements themselves: position, attributes of groups, configuration,
/// manifest.
std::string digested_text(const FileIndex& index);
std::uint64_t root_digest(const FileIndex& index);

/// Exact: equal texts mean equal values.
std::string to_text(const AttributeValue& value);

}  // namespace lockstep::checkpoint
