// Private to the room: what of a file goes where in memory, and what does not fit. Knows names and shapes
// only.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/contents.h"

namespace lockstep::checkpoint {

/// An array in a file.
struct StoredTensor {
  std::string group;  ///< empty: of a file without groups, or at its root
  std::string name;
  std::string dtype;  ///< "float32", "float16" ...
  std::vector<std::int64_t> shape;
  bool transposed = false;  ///< a matrix to be read as its transpose; `shape` is still the file's
  bool ignored = false;     ///< known to be of no use
};

/// Element types in files that a tensor may be loaded from.
enum class Conversion {
  lossless,  ///< those whose every value it holds: float32 from 16-bit floats, int64 from int32 ...
  rounding,  ///< and float32 from float64
};

/// What is wanted of one group.
struct Wanted {
  std::string group;
  std::span<const NamedTensor> tensors;
  bool subset = false;  ///< other names in the group are no concern
};

struct Fit {
  struct Pair {
    std::size_t stored;  ///< index into the stored tensors
    NamedTensor target;
  };
  std::vector<Pair> pairs;
  std::vector<std::string> problems;  ///< "missing: model/a, model/b ... and 9 more", "wrong shape: model/c
                                      ///< is [3] in the file, [4] here" ...
  bool ambiguous = false;             ///< names collide: no way of loading is right
};

/// Compares names without leading "module." and "_orig_mod.", on both sides.
Fit fit(std::span<const StoredTensor> stored, std::span<const Wanted> wanted, Conversion conversion);

}  // namespace lockstep::checkpoint
