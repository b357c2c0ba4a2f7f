// Reports as JSON (one object, keys fixed) and as text for people (ends with a newline).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/checkpoint/inspect.h"

namespace lockstep::checkpoint {

/// {path, whole, problems[], step, tensors, payload_bytes}
nlohmann::json to_json(const VerifyReport& report);
std::string to_text(const VerifyReport& report);

/// {a, b, same, tolerance, tensors, elements, attributes: [{name, a, b}],
/// differences: [{tensor, kind, shape_a, shape_b, dtype_a, dtype_b, different, max_abs}]}; max_abs is null
/// where infinite. The text names two dozen tensors at most, and counts the rest.
nlohmann::json to_json(const DiffReport& report);
std::string to_text(const DiffReport& report);

/// {path, format_version, step, epoch, samples, shards, seed, world_size, created, digest, provenance{},
/// config, groups: [{path, attributes{}}], tensors: [{name, shape, dtype, bytes, digest, digest_right, norm,
/// min, max, not_finite}]}; what a user's own program did not tell its Store (epoch, samples, shards, seed)
/// is null, and left out of the text.
nlohmann::json to_json(const Inspection& inspection);
std::string to_text(const Inspection& inspection);

}  // namespace lockstep::checkpoint
