// The content of checkpoint files: inspect lists it, verify checks every byte, diff compares two files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::checkpoint {

/// A tensor with statistics of its values.
struct TensorSummary {
  TensorEntry entry;            ///< its entry in the index
  double norm = 0;              ///< Euclidean, in float64; like min and max over finite elements
  double min = 0, max = 0;      ///< 0 without finite elements
  std::int64_t not_finite = 0;  ///< how many elements are NaN or infinite
  bool digest_right = true;     ///< whether the values have the digest of the manifest
};

/// The result of inspect().
struct Inspection {
  FileIndex index;                     ///< the index of the file
  std::vector<TensorSummary> tensors;  ///< in the order of index.tensors
};

/// Reads the whole file. DataError if it is not a readable checkpoint; a wrong digest is reported, not
/// thrown.
Inspection inspect(const std::string& path);

/// The result of verify().
struct VerifyReport {
  std::string path;                   ///< the file, with links resolved
  std::vector<std::string> problems;  ///< one line each; empty: complete, and all digests right
  std::int64_t step = 0;              ///< finished updates at the save
  std::int64_t tensors = 0;           ///< number of tensors read
  std::uint64_t payload_bytes = 0;    ///< number of bytes read

  bool whole() const { return problems.empty(); }  ///< whether there is no problem
};

/// Reads the whole file. Collective; ranks share the reading, and the report is the same on all. A bad file
/// is a report, not an exception; failing storage (EIO) throws FailureError.
VerifyReport verify(const std::string& path, comm::HostGroup& world);

/// A tensor that differs.
struct TensorDifference {
  /// How it differs; only_in_a, only_in_b: the other file lacks it.
  enum class Kind { only_in_a, only_in_b, shape, dtype, values };
  Kind kind = Kind::values;                                  ///< the kind of difference
  std::string path;                                          ///< "/model/hidden.weight"
  Shape shape_a, shape_b;                                    ///< in both files
  DType dtype_a = DType::float32, dtype_b = DType::float32;  ///< in both files
  /// For Kind::values: elements farther apart than the tolerance, and the largest distance (infinite if one
  /// is not finite and the other differs).
  std::int64_t different = 0;
  double max_abs = 0;  ///< largest |a - b|
};

/// An attribute that differs.
struct AttributeDifference {
  std::string name;  ///< "step", "/ema/0.999 updates"
  std::string a, b;  ///< empty: the file lacks it
};

/// The result of diff().
struct DiffReport {
  std::string path_a, path_b;                   ///< the compared files
  double tolerance = 0;                         ///< the argument; 0: bits
  std::int64_t tensors = 0;                     ///< number of compared tensors, without those of /data
  std::int64_t elements = 0;                    ///< number of their elements
  std::vector<AttributeDifference> attributes;  ///< those that differ
  std::vector<TensorDifference> differences;    ///< those that differ, in the order of the first file

  bool same() const { return attributes.empty() && differences.empty(); }  ///< whether nothing differs
};

/// Compares all tensors, the position (step, epoch, samples, shards, seed) and the attributes of groups; not
/// world size, time of creation, configuration or provenance, and of the data (/data) only a mean and
/// deviation that both have. tolerance 0 compares bits; otherwise values are equal if |a - b| <= tolerance or
/// both are NaN. Tensors are verified by digest as they are read. DataError if either file is not a complete
/// checkpoint. Not collective.
DiffReport diff(const std::string& path_a, const std::string& path_b, double tolerance = 0);

// Reports as JSON (one object, its keys are fixed) and as text for people (ends with a newline).

/// {path, whole, problems[], step, tensors, payload_bytes}
nlohmann::json to_json(const VerifyReport& report);
std::string to_text(const VerifyReport& report);

/// {a, b, same, tolerance, tensors, elements, attributes: [{name, a, b}],
/// differences: [{tensor, kind, shape_a, shape_b, dtype_a, dtype_b, different, max_abs}]}; max_abs is null
/// if infinite. The text names two dozen tensors at most, and counts the rest.
nlohmann::json to_json(const DiffReport& report);
std::string to_text(const DiffReport& report);

/// {path, format_version, step, epoch, samples, shards, seed, world_size, created, digest, provenance{},
/// config, groups: [{path, attributes{}}], tensors: [{name, shape, dtype, bytes, digest, digest_right, norm,
/// min, max, not_finite}]}; epoch, samples, shards and seed are null, and left out of the text, if the
/// program did not give them to its Store.
nlohmann::json to_json(const Inspection& inspection);
std::string to_text(const Inspection& inspection);

}  // namespace lockstep::checkpoint
