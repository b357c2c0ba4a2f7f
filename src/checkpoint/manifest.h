// Private to the module: what an index is as text: /manifest, and what the root digest is taken over.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

/// The counts of a Position by the names that files and reports give them; `seed` comes after them.
struct PositionCount {
  const char* name;
  std::int64_t Position::*value;
};
inline constexpr std::array<PositionCount, 4> position_counts{{{"step", &Position::step},
                                                               {"epoch", &Position::epoch},
                                                               {"samples", &Position::samples},
                                                               {"shards", &Position::shards}}};

/// The element types that tensors of a checkpoint may have.
constexpr bool is_storable(DType dtype) {
  return is_floating(dtype) || dtype == DType::int64 || dtype == DType::int32 || dtype == DType::uint8;
}

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
